"""Real text in many languages from Debian's source and documentation packages.

Packages are downloaded and unpacked below a cache directory, never installed: no root is needed,
and apt's own state stays as it is. Versions are what the archive serves; they are kept beside the
packages, since another version is another corpus.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

PACKAGES = (
    *("golang-1.19-src", "rust-src", "openjdk-17-source"),
    *("python3.11-doc", "perl-doc", "git-doc", "sqlite3-doc", "vim-runtime", "tcl8.6-doc"),
    *("manpages", "manpages-dev", "erlang-manpages"),
    *("manpages-de", "manpages-es", "manpages-fr", "manpages-ja", "manpages-pl", "manpages-ru"),
    *("manpages-zh", "debian-handbook", "dict-gcide", "dict-foldoc", "wordnet-base"),
    "fortunes",
)
_FILES = (
    *(".go", ".s", ".c", ".h", ".rs", ".md", ".toml", ".java", ".pl"),
    *(".txt", ".pod", ".vim", ".rst"),
)
_MAN_PAGE = re.compile(r"/man/.*\.\w+\.gz$")
_TWICE = "/perl-doc/usr/share/man/"
"""The same text as its .pod files."""


def available() -> bool:
    """Whether this machine has apt-get and dpkg-deb."""
    return all(shutil.which(program) for program in ("apt-get", "dpkg-deb"))


def fetch(cache: Path) -> dict[str, str]:
    """Download and unpack what is not there yet; the version of each package.

    Raises:
        RuntimeError: a package that cannot be had.
    """
    cache = cache.resolve()
    note = cache / "versions.json"
    if note.exists():
        return json.loads(note.read_text())
    state, files = cache / "apt", cache / "deb"
    shutil.rmtree(files, ignore_errors=True)  # of a try that broke off, other versions perhaps
    for directory in (state / "lists", state / "cache", files):
        directory.mkdir(parents=True, exist_ok=True)
    options = [
        *("-qq", "-o", f"Dir::State={state}", "-o", f"Dir::Cache={state / 'cache'}"),
        *("-o", "Dir::State::status=/var/lib/dpkg/status", "-o", "APT::Sandbox::User=root"),
    ]
    _run(["apt-get", *options, "update"], files)
    _run(["apt-get", *options, "download", *PACKAGES], files)
    versions = {}
    for package in PACKAGES:
        (archive,) = files.glob(f"{package}_*.deb")
        versions[package] = archive.name.split("_")[1].replace("%3a", ":")
        unpacked = cache / "unpacked" / package
        unpacked.mkdir(parents=True, exist_ok=True)
        _run(["dpkg-deb", "-x", str(archive), str(unpacked)], files)
    note.write_text(json.dumps(versions, indent=1))
    return versions


def texts(cache: Path) -> Iterator[tuple[str, str]]:
    """Package and text of every document of what `fetch` left, packages and paths in order."""
    for package in PACKAGES:
        root = cache / "unpacked" / package
        paths = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
            reader = _reader(path)
            if reader is not None:
                for text in reader(path):
                    yield package, text


def _run(command: list[str], directory: Path) -> None:
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command[:1])} failed: {result.stderr.strip()[-500:]}")


def _reader(path: Path) -> Callable[[Path], Iterator[str]] | None:
    """How the documents of a file are read; None for a file that is no text of interest."""
    name = path.as_posix()
    if "/games/fortunes/" in name and not path.suffix:
        return _fortunes
    if "/wordnet/data." in name:
        return _glosses
    if name.endswith(".dict.dz"):
        return _entries
    if name.endswith("src.zip"):
        return _zipped
    if path.suffix == ".html":
        return _page
    if _MAN_PAGE.search(name) and _TWICE not in name:
        return _gzipped
    return _whole if path.suffix in _FILES else None


def _decoded(content: bytes) -> Iterator[str]:
    """A text, or nothing for what is not UTF-8."""
    try:
        yield content.decode()
    except UnicodeDecodeError:
        return


def _whole(path: Path) -> Iterator[str]:
    return _decoded(path.read_bytes())


def _gzipped(path: Path) -> Iterator[str]:
    return _decoded(gzip.decompress(path.read_bytes()))


def _zipped(path: Path) -> Iterator[str]:
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith("java.base/") and name.endswith(_FILES):  # a quarter of it
                yield from _decoded(archive.read(name))


def _fortunes(path: Path) -> Iterator[str]:
    for text in _whole(path):
        yield from re.split(r"^%\n", text, flags=re.MULTILINE)


def _glosses(path: Path) -> Iterator[str]:
    """What follows the bar: a word's meaning and examples."""
    for line in path.read_text(encoding="utf-8").splitlines():
        _, bar, gloss = line.partition(" | ")
        if bar:
            yield gloss.strip()


def _entries(path: Path) -> Iterator[str]:
    """Entries of a dictionary, which begin at a line without indentation."""
    for entry in re.split(rb"\n\n(?=\S)", gzip.decompress(path.read_bytes())):
        yield from _decoded(entry)


class _Text(HTMLParser):
    """The text of a page, without what is not shown."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


def _page(path: Path) -> Iterator[str]:
    for content in _whole(path):
        page = _Text()
        page.feed(content)
        lines = (line.rstrip() for line in "".join(page.parts).splitlines())
        yield re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
