"""Directories of runs: settings, checkpoints, evaluations, policies."""
