"""The table of framework-neutral optimisations, and how each framework spells them."""
