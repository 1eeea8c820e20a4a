"""A file under a second name, without its bytes a second time where that can be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pipeline.shard.atomic import atomic_path


def link_or_copy(path: Path, target: Path) -> None:
    """Give a file another name, in place of what had it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(path, target)
    except OSError:  # another disk, or one without links
        with atomic_path(target) as temporary:
            shutil.copyfile(path, temporary)
