"""Front ends: the command line, the displays, and the place where everything is put together."""
