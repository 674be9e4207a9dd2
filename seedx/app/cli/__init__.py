"""Command lines of programs and experiments."""
