"""Settings: configs, their texts, presets and experiments."""
