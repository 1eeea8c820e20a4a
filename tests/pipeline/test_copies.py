"""Local copies of remote files: of what is there now, and a line where there is no room."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.files import copies
from pipeline.files.copies import copy_of

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def url() -> Iterator[str]:
    """A file of a file system that says of no file when it changed."""
    memory = fsspec.filesystem("memory")
    memory.pipe("/copies/part", b"first")
    yield "memory://copies/part"
    memory.rm("/copies", recursive=True)


def test_what_nothing_stamps_is_copied_anew(url: str) -> None:
    assert copy_of(url).to_pybytes() == b"first"
    fsspec.filesystem("memory").pipe("/copies/part", b"other")
    assert copy_of(url).to_pybytes() == b"other"


def test_what_is_stamped_is_copied_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "stamp", lambda _: "as it was")
    assert copy_of(url).to_pybytes() == b"first"
    fsspec.filesystem("memory").pipe("/copies/part", b"other")
    assert copy_of(url).to_pybytes() == b"first"
    copies._copy_as_of.cache_clear()


def test_a_copy_without_room_says_where(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fsspec.filesystem("memory").pipe("/copies/part", bytes(1 << 20))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OSError, match="make room") as caught:
            copy_of(url)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert str(caught.value.filename).startswith(str(tmp_path))
    assert not list(tmp_path.iterdir())
