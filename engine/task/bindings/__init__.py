"""Where a parameter's value lives: a configuration file, a flag, the environment, a Python constant."""
