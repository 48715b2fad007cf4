"""Runs job requests: submitit on this machine or on a cluster, and the node agent that wraps a trial."""
