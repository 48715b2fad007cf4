"""Trials on this machine."""
