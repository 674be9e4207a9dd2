"""Benchmarks for the developers of seedx."""
