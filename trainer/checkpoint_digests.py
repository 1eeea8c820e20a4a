"""Digests of a checkpoint's files: written last, and checked before anything in it is believed.

They are in `digests.json` beside the files, which has a digest of itself. XXH3-128, since the
question is whether bytes are intact, and a checkpoint is the largest thing that a run reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pipeline.files.atomic import write_atomically
from pipeline.shard.digests import xxh3_128, xxh3_128_file
from trainer.errors import TrainerError

FILE = "digests.json"


class FileDigest(NamedTuple):
    """What is on record of a file."""

    num_bytes: int
    xxh3_128: str


def digest_of(path: Path) -> FileDigest:
    """Of a file as it is.

    Raises:
        OSError: it cannot be read.
    """
    return FileDigest(path.stat().st_size, xxh3_128_file(path))


def write_digests(checkpoint: Path, digests: Mapping[str, FileDigest]) -> None:
    """Put them beside the files, by the files' names; whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    write_atomically(checkpoint / FILE, _content(digests))


def read_digests(checkpoint: Path) -> dict[str, FileDigest]:
    """What is on record of each file, by name.

    Raises:
        TrainerError: it cannot be read, or is damaged.
    """
    path = checkpoint / FILE
    try:
        data = path.read_bytes()
        found = {name: FileDigest(*entry) for name, entry in json.loads(data)["files"].items()}
        if _content(found) != data:
            raise ValueError
    except OSError as error:
        raise TrainerError(_refusal(path, f"cannot be read: {error.strerror}")) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise TrainerError(_refusal(path, "is damaged")) from error
    return found


def check_files(
    checkpoint: Path, digests: Mapping[str, FileDigest], names: Iterable[str]
) -> str | None:
    """What is wrong with the first of these files that is not as recorded, in one line, or None.

    A file is read once, whole.
    """
    for name in names:
        path, wanted = checkpoint / name, digests.get(name)
        if wanted is None:
            return _refusal(path, f"{FILE} does not list it")
        try:
            found = digest_of(path)
        except FileNotFoundError:
            return _refusal(path, "is missing")
        except OSError as error:
            return _refusal(path, f"cannot be read: {error.strerror}")
        if found.num_bytes != wanted.num_bytes:
            sizes = f"has {found.num_bytes} bytes, {FILE} says {wanted.num_bytes}"
            return _refusal(path, sizes)
        if found != wanted:
            both = f"its XXH3-128 is {found.xxh3_128}, {FILE} says {wanted.xxh3_128}"
            return _refusal(path, f"{both}; the file is damaged")
    return None


def _content(digests: Mapping[str, FileDigest]) -> bytes:
    files = {name: list(digests[name]) for name in sorted(digests)}
    own = xxh3_128(json.dumps(files).encode())
    return json.dumps({"files": files, "xxh3_128": own}, indent=1).encode() + b"\n"


def _refusal(path: Path, what: str) -> str:
    return (
        f"{path}: {what}; restore the checkpoint from a copy, or remove {path.parent.name}: a run "
        "goes on from the one before it"
    )
