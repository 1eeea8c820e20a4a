"""Which files are below a directory, and how large."""

from __future__ import annotations

from pathlib import Path

from pipeline.files.storage import list_files
from pipeline.files.url_path import is_remote


class Sizes:
    """Bytes of files by name relative to a directory.

    On a disk each is looked up as it is asked for; an object store is asked once, by listing what
    there is when this is made.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._listed = list_files(str(directory), hidden=True) if is_remote(directory) else None

    def of(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        if self._listed is not None:
            return self._listed.get(name)
        path = self._directory / name
        return path.stat().st_size if path.is_file() else None
