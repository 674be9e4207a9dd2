"""Roles: the stateful shells around the pure functions."""
