"""Attacks on pixels, and what trained runs still get right under them."""
