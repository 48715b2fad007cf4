"""How record_landscape.py measures the configurations of a sample task."""
