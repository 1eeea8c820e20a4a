"""Corpora to records: which files there are, how they are cut into splits, what is in them."""
