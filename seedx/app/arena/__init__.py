"""Games between players, such as trained runs; see `main`."""
