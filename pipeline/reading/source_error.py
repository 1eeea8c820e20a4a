"""The error of everything that reads a source's files."""


class SourceError(ValueError):
    """A source's files are not what the configuration says; the message says what to do."""
