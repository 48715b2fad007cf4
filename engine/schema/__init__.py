"""Frozen records that the layers exchange and the files hold."""
