"""The training loop, and what a run is made of while it trains."""
