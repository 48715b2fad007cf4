"""The node agent: launches one trial, listens to its probes, watches and ends it. Standard library only."""
