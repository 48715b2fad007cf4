"""Look at a cluster, a machine and a disk before anything is spent on them: independent checks."""
