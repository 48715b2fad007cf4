"""Sixteen checks that a faster run still trains the same thing."""
