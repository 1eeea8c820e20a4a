"""What the package `datasets` can load, as Arrow files: its own cache of them.

Only the driver loads; tasks read the Arrow files like any others. No code of a data set is run:
`datasets` 4 and later have no loading scripts.
"""

from __future__ import annotations

import os


class DatasetError(ValueError):
    """`datasets` cannot give what was asked for; the message says why, in one line."""


def arrow_files(path: str, *, config: str | None, split: str) -> list[str]:
    """The Arrow files of one split, in the order of its rows.

    Args:
        path: a local file or directory, or a name on the hub.
        config: the builder's configuration, or None for its default.
        split: such as "train", or "train+validation"; always whole.

    Raises:
        DatasetError: the package is missing, or it cannot load this; without network the hub's data
            sets must be in its cache.
    """
    if "[" in split:
        raise DatasetError(f"dataset_split {split!r} is a slice; only whole splits are read")
    try:
        import datasets
    except ImportError as error:
        raise DatasetError(
            "the package datasets is not installed; pip install 'steelyard[hf]'"
        ) from error
    where, files = path, None
    if os.path.isfile(path):
        where, files = os.path.split(os.path.abspath(path))
    try:
        datasets.disable_progress_bars()
        loaded = datasets.load_dataset(where, name=config, data_files=files, split=split)
    except Exception as error:  # builders raise whatever their readers raise
        lines = str(error).splitlines() or [type(error).__name__]
        raise DatasetError(f"datasets cannot load it: {lines[0]}") from error
    found = [entry["filename"] for entry in loaded.cache_files]
    if not found:
        raise DatasetError("datasets keeps it in memory; give it a cache on disk")
    return found
