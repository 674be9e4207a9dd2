"""Pipelines: which roles run where, and what crosses between them."""
