"""One module a command; arguments in, one JSON-able value and an exit code out."""
