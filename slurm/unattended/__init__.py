"""The engine itself as a small Slurm job: it survives logout, requeues, time limits and crashes."""
