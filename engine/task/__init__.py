"""The task file: loading, checking, the space of configurations, writing values into a project."""
