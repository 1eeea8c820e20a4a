"""Directories of `save_to_disk` of the package `datasets`: which of their files are data.

A data set has `state.json`, which names its Arrow files, and `dataset_info.json`; one of
several splits has `dataset_dict.json` above them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


class SavedDatasetError(ValueError):
    """A directory of `save_to_disk` that cannot be read as one source."""


def data_files(names: Iterable[str], read: Callable[[str], bytes]) -> list[str]:
    """The names without the files that only describe a saved data set.

    Args:
        names: relative paths of all files of a directory.
        read: the content of one.

    Raises:
        SavedDatasetError: several splits in one directory, or files that state.json names are not
            there.
    """
    known = set(names)
    for name in sorted(known):
        folder, _, last = name.rpartition("/")
        prefix = f"{folder}/" if folder else ""
        if last == _SPLITS:
            splits = _described(name, read, "splits")
            raise SavedDatasetError(
                f"{folder or 'the directory'} holds the splits {', '.join(splits)} of a data set; "
                "name one of these directories"
            )
        if last == STATE and prefix + _INFO in known:
            data = {prefix + file for file in _described(name, read, "_data_files")}
            if missing := sorted(data - known):
                raise SavedDatasetError(f"{name} names {missing[0]}, which is not there")
            known -= {other for other in known if other.rpartition("/")[0] == folder} - data
    return sorted(known)


def _described(name: str, read: Callable[[str], bytes], field: str) -> list[str]:
    """The names that a describing file lists."""
    try:
        entries = json.loads(read(name))[field]
        return [entry if isinstance(entry, str) else entry["filename"] for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise SavedDatasetError(
            f"{name} is not as save_to_disk writes it ({error!r}); restore the file"
        ) from error
