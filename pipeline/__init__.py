"""The stages from corpora to shards, as plain functions over files and Arrow tables."""
