"""Roles: the threads and the state around the pure functions."""
