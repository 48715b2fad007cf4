"""Trials as Slurm jobs, one job a trial."""
