"""Tests of lesam.flatness."""
