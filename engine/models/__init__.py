"""The engine's statistics: arrays in, posteriors out; nothing here knows of trials, files or settings."""
