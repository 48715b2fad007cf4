"""The optimiser: stages, search, models, invariants. Knows no user interface and no scheduler."""
