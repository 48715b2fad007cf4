"""One trial: the prepared copy of the project, the plan of its run, what the run says."""
