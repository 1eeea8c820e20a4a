"""Benchmarks: each prints and writes the rows that the README shows."""
