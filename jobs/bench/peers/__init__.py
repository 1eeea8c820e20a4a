"""Other tools on the same text, vocabulary and cores: `make bench-peers`."""
