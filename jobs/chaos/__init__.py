"""Faults on purpose: what a build, a set and a reader do when something goes wrong."""
