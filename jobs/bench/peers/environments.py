"""Environments of their own for the peers, kept in a cache directory from run to run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

_UV = "uv==0.13.9"
_LIMIT_S = 900.0
_VERSIONS = (
    "import importlib.metadata as m, json; "
    "print(json.dumps({d.name.lower(): d.version for d in m.distributions()}))"
)


class NotInstalledError(RuntimeError):
    """A peer's packages could not be installed; the message says why, in one line."""


def environment_of(name: str, requirements: tuple[str, ...], cache: Path) -> Path:
    """The Python of an environment that holds the requirements, made where it is missing.

    Raises:
        NotInstalledError: it cannot be made.
    """
    directory = cache / "environments" / name
    note = directory / "requirements.txt"
    python = directory / "bin" / "python"
    wanted = "".join(f"{line}\n" for line in requirements)
    if note.exists() and note.read_text() == wanted:
        return python
    shutil.rmtree(directory, ignore_errors=True)
    _run([sys.executable, "-m", "venv", *_without_pip(cache), str(directory)])
    _run([*_installer(cache, python), *requirements])
    note.write_text(wanted)
    return python


def versions_in(python: Path) -> dict[str, str]:
    """All packages of an environment and their versions."""
    return json.loads(_run([str(python), "-c", _VERSIONS]))


def unpack(requirement: str, cache: Path) -> Path:
    """A directory with one package's files, without what it depends on.

    Raises:
        NotInstalledError: it cannot be had.
    """
    directory = cache / "files" / requirement
    if not directory.exists():
        partial = directory.with_name(f"{requirement}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        _run([*pip, "--target", str(partial), requirement])
        partial.rename(directory)
    return directory


def _uv(cache: Path) -> str | None:
    """The uv on the path, or one installed by pip: its resolver ends where pip's may not."""
    found = shutil.which("uv")
    if found is None:
        own = cache / "environments" / "uv"
        try:
            if not (own / "bin" / "uv").exists():
                _run([sys.executable, "-m", "venv", str(own)])
                _run([str(own / "bin" / "python"), "-m", "pip", "install", "--quiet", _UV])
            found = str(own / "bin" / "uv")
        except NotInstalledError:
            return None
    return found


def _without_pip(cache: Path) -> list[str]:
    return ["--without-pip"] if _uv(cache) else []


def _installer(cache: Path, python: Path) -> list[str]:
    uv = _uv(cache)
    if uv is None:
        return [str(python), "-m", "pip", "install", "--quiet"]
    return [uv, "pip", "install", "--quiet", "--python", str(python)]


def _run(command: list[str]) -> str:
    links = os.environ.get("PIP_FIND_LINKS")
    environment = os.environ | ({"UV_FIND_LINKS": links} if links else {})
    environment.pop("PYTHONPATH", None)
    try:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalledError(f"not installed after {_LIMIT_S:.0f} s") from error
    if result.returncode:
        said = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        raise NotInstalledError(f"not installed: {' '.join(said[-3:])[-300:] or 'no reason given'}")
    return result.stdout
