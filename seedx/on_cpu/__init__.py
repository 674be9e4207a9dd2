"""Faster computations on CPUs. Skip this package on a first reading."""
