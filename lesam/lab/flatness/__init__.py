"""Flatness of trained runs: eigenvalues, trace, density, low-pass filter, landscape."""
