"""A file under a second name, without its bytes a second time where that can be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pipeline.files.atomic import atomic_path
from pipeline.files.storage import copy, download
from pipeline.files.url_path import is_remote


def link_or_copy(path: Path, target: Path) -> None:
    """Give a file another name, in place of what had it; an object store copies."""
    if is_remote(path) and is_remote(target):
        copy(str(path), str(target))
        return
    if not is_remote(path) and not is_remote(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            os.link(path, target)
            return
        except OSError:
            pass  # another disk, or one without links
    with atomic_path(target) as temporary:
        if is_remote(path):
            download(str(path), str(temporary))
        else:
            shutil.copyfile(path, temporary)
