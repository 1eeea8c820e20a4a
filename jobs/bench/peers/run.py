"""Tokenize one corpus with every tool: `python -m jobs.bench.peers.run [--only NAME,...]`.

Each tool gets the same JSONL files, vocabulary (o200k) and number of workers, and adds EOS after
every document. A row is kept as soon as a tool is done, so that any tool can be run again by name;
at the full size all rows become `results/peers.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobs.bench import machine
from jobs.bench.huge import engines
from jobs.bench.mixed import Corpus, write_mixed
from jobs.bench.peers import environments
from jobs.bench.peers.ids import contents, flat_files, parquet_files
from jobs.bench.peers.ours import configuration
from jobs.bench.peers.tools import PEERS, Ours, Peer, ours
from jobs.bench.peers.vocabulary import EOS, EOS_ID, o200k
from jobs.bench.processes import Usage, measure

MEGABYTES = 300.0
WORKERS = 2
_ROOT = Path(__file__).parents[3]
_SCRIPTS = Path(__file__).parent / "scripts"
Row = dict[str, Any]


def main(arguments: list[str]) -> None:
    """Run what is asked for, print the rows, and keep them."""
    asked = _parse(arguments)
    cache = asked.cache.resolve()
    tools = (*PEERS, *ours(tuple(asked.engines.split(","))))
    chosen = asked.only.split(",") if asked.only else [tool.name for tool in tools]
    unknown = set(chosen) - {tool.name for tool in tools}
    if unknown:
        known = ", ".join(tool.name for tool in tools)
        raise SystemExit(f"no tool {', '.join(sorted(unknown))}; known: {known}")
    directory = cache / f"corpus-{asked.megabytes:g}"
    try:
        corpus = write_mixed(directory, megabytes=asked.megabytes, cache=cache)
        vocabulary = o200k(cache)
    except (RuntimeError, ValueError) as error:  # without them there is nothing to compare
        raise SystemExit(str(error)) from error
    kept = directory / "rows"
    kept.mkdir(exist_ok=True)
    for tool in tools:
        if tool.name in chosen:
            row = _row(tool, corpus, vocabulary, cache)
            (kept / f"{tool.name}.json").write_text(json.dumps(row))
            print(json.dumps(row), flush=True)
    rows = [
        json.loads(path.read_text())
        for path in (kept / f"{tool.name}.json" for tool in tools)
        if path.exists()
    ]
    if asked.megabytes == MEGABYTES:
        about = {key: value for key, value in asdict(corpus).items() if key != "files"}
        print(f"{len(rows)} rows in {machine.save('peers', compare(rows), corpus=about)}")


def compare(rows: list[Row]) -> list[Row]:
    """The rows, each with whether its documents have the ids of our tokenize stage."""
    ours_found = next((row["found"] for row in rows if row["tool"].startswith("tokenize-")), None)
    return [
        {
            **row,
            "same_ids": None if None in (row["found"], ours_found) else row["found"] == ours_found,
        }
        for row in rows
    ]


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m jobs.bench.peers.run")
    parser.add_argument("--only", help="names of tools, with commas between")
    parser.add_argument("--megabytes", type=float, default=MEGABYTES, help="of text")
    parser.add_argument("--cache", type=Path, default=Path("out/peers"), help="kept between runs")
    parser.add_argument(
        "--engines", default=",".join(engines()), help="of our tokenize stage, a row each"
    )
    return parser.parse_args(arguments)


def _row(tool: Peer | Ours, corpus: Corpus, vocabulary: Path, cache: Path) -> Row:
    """Run a tool in an empty directory, measure it, and look at what it wrote."""
    scratch = cache / "scratch" / tool.name
    shutil.rmtree(scratch, ignore_errors=True)
    out = scratch / "out"
    out.mkdir(parents=True)
    job = {
        "files": list(corpus.files),
        "tokenizer": str(vocabulary),
        "eos_token": EOS,
        "eos_id": EOS_ID,
        "out": str(out),
        "workers": WORKERS,
    }
    package = tool.package if isinstance(tool, Peer) else None
    row: Row = {"tool": tool.name, "does": tool.does, "package": package}
    row |= {"text_mb": corpus.text_bytes / 1e6, "failed": None, "versions": {}, "found": None}
    _read_once(corpus)
    try:
        run = _run_peer if isinstance(tool, Peer) else _run_ours
        row |= run(tool, job, scratch, cache)  # pyright: ignore[reportArgumentType]
    except (environments.NotInstalledError, FailedError, OSError, ValueError) as error:
        row["failed"] = str(error) or type(error).__name__
    else:
        written = row["found"]["documents"]
        if written != corpus.documents:
            row["failed"] = f"wrote {written} of {corpus.documents} documents"
        row["mb_per_s"] = row["text_mb"] / row["seconds"]
        row["stage_mb_per_s"] = row["text_mb"] / row["stage_seconds"]
        shutil.rmtree(scratch)
    return row


class FailedError(RuntimeError):
    """A tool did not do its work; the message has the end of what it said."""


def _read_once(corpus: Corpus) -> None:
    """Bring the files into the system's cache, so that the first tool has no worse start."""
    for file in corpus.files:
        Path(file).read_bytes()


def _run_peer(peer: Peer, job: Row, scratch: Path, cache: Path) -> Row:
    python = environments.environment_of(peer.name, peer.requirements, cache)
    versions = environments.versions_in(python)
    environment = {
        **os.environ,
        "HF_HOME": str(scratch / "hf"),
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(_made(scratch / "tmp")),
    }
    environment.pop("PYTHONPATH", None)
    usage, report = _measured(
        [str(python), str(_SCRIPTS / peer.script)], job, scratch, environment, peer.limit_s
    )
    paths = sorted(Path(job["out"]).glob(peer.output))
    files = (
        parquet_files(paths, "ids") if peer.dtype == "parquet" else flat_files(paths, peer.dtype)
    )
    names = (peer.package, "tokenizers", "numpy", "pyarrow")
    return {
        **_figures(usage, report),
        "versions": {name: versions[name] for name in names if name in versions},
        "found": asdict(contents(files, eos=job["eos_id"])),
    }


def _run_ours(tool: Ours, job: Row, scratch: Path, cache: Path) -> Row:
    del cache
    job = {**job, "engine": tool.engine, "what": tool.what}
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    usage, report = _measured(
        [sys.executable, "-m", "jobs.bench.peers.ours"], job, scratch, environment, tool.limit_s
    )
    if tool.what == "build":
        usage = _cold_build(job, scratch, environment, tool.limit_s)
    stores = sorted(Path(job["out"]).glob("whole/store/*" if tool.what == "build" else "store/*"))
    paths = sorted(path for store in stores for path in store.glob("parts/*.tokens"))
    files = flat_files(paths, "uint32")
    return {
        **_figures(usage, report),
        "versions": machine.describe()["versions"],
        "found": asdict(contents(files, eos=job["eos_id"])),
    }


def _cold_build(job: Row, scratch: Path, environment: dict[str, str], limit_s: float) -> Usage:
    """What a user types, in a process that starts Ray and compiles."""
    toml = scratch / "build.toml"
    toml.write_text(_toml(configuration(job)))
    command = [sys.executable, "-m", "jobs", "build", "--config", str(toml)]
    return _checked(
        [*command, "--out", str(scratch / "cold")], scratch, "cold", environment, limit_s
    )


def _toml(tables: dict[str, Any]) -> str:
    """A configuration as TOML; JSON's strings, numbers and lists are TOML's as well."""
    lines = []
    for name, table in tables.items():
        for entry in table if isinstance(table, list) else [table]:
            lines.append(f"[[{name}]]" if isinstance(table, list) else f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
    return "\n".join(lines) + "\n"


def _measured(
    command: list[str], job: Row, scratch: Path, environment: dict[str, str], limit_s: float
) -> tuple[Usage, Row]:
    note, report = scratch / "job.json", scratch / "report.json"
    note.write_text(json.dumps(job))
    usage = _checked([*command, str(note), str(report)], scratch, "run", environment, limit_s)
    return usage, json.loads(report.read_text())


def _checked(
    command: list[str], scratch: Path, name: str, environment: dict[str, str], limit_s: float
) -> Usage:
    log = scratch / f"{name}.log"
    usage = measure(command, directory=scratch, environment=environment, log=log, limit_s=limit_s)
    if usage.timed_out:
        raise FailedError(f"not done after {limit_s:.0f} s")
    if usage.returncode:
        said = [line.strip() for line in log.read_text(errors="replace").splitlines()]
        last = next((line for line in reversed(said) if line), "nothing said")
        raise FailedError(f"ended with {usage.returncode}: {last[:200]}")
    return usage


def _figures(usage: Usage, report: Row) -> Row:
    return {
        "seconds": usage.seconds,
        "cpu_seconds": usage.cpu_seconds,
        "peak_mib": usage.peak_bytes / 2**20,
        "mapped_files_mib": usage.mapped_bytes / 2**20,
        **report,
    }


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


if __name__ == "__main__":
    main(sys.argv[1:])
