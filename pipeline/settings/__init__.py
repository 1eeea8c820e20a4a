"""The tables of a configuration; `pipeline.config` puts them together."""
