"""Programs: a config and a main each."""
