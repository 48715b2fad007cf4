"""The five stages, one file each; every stage skips what the journal already holds."""
