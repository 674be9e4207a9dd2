"""Faster computations on CPUs; skip this package on a first reading."""
