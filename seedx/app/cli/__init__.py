"""Command lines: settings, experiments and their presets, programs."""
