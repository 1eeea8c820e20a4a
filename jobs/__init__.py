"""The command line, and the only place that knows Ray."""
