"""Watches one training rank and reports each optimizer update to the node agent."""
