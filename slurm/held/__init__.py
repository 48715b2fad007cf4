"""Trials as steps of one allocation that is held between them."""
