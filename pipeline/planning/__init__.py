"""Length indexes to plans: the stream, the steps it makes, and which CP rank runs what."""
