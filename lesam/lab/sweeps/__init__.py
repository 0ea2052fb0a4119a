"""Many runs: on a grid, in a search, side by side."""
