"""Comparison with other libraries; see `benchmarks.peers.__main__`."""
