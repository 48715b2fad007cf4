"""Talking to Slurm: the only code that runs squeue, scontrol, sacct and their like."""
