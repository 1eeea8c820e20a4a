"""One huge document through the tokenize stage, beside the same text as ordinary documents.

A row an engine: seconds of `tokenize_split` in a process that has loaded the vocabulary, and the
peak memory of that process, which holds the document, its ids and what the engine needs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs.bench.corpus import texts
from jobs.bench.peers.vocabulary import EOS, o200k
from jobs.bench.processes import measure
from pipeline.reading.listing import list_inputs
from pipeline.reading.sample import sample_texts
from pipeline.reading.splits import plan_splits
from pipeline.settings.documents import SourceConfig, TokenizerConfig
from pipeline.stores.tokenize import tokenize_split
from pipeline.tokenizer.choose import choose_engine
from pipeline.tokenizer.documents import load_encoder
from pipeline.tokenizer.resolve import resolve_tokenizer

MEGABYTES = 64.0
_ORDINARY = 65_536
"""Most characters of an ordinary document."""
_LIMIT_S = 1800.0
_SAMPLE = 1 << 20
_ROOT = Path(__file__).parents[2]


def run() -> list[dict[str, Any]]:
    """A row an engine that a configuration may name, at the full size."""
    return measure_engines(engines(), megabytes=MEGABYTES)


def engines() -> tuple[str, ...]:
    """Every engine that a configuration may name."""
    annotation: Any = TokenizerConfig.model_fields["engine"].annotation
    return annotation.__args__


def measure_engines(names: tuple[str, ...], *, megabytes: float) -> list[dict[str, Any]]:
    """A row an engine; a failure is a row as well."""
    scratch = Path(tempfile.mkdtemp(prefix="steelyard-bench-"))
    try:
        ordinary, huge = scratch / "ordinary.jsonl", scratch / "huge.jsonl"
        size = write_both(ordinary, huge, texts(), megabytes=megabytes)
        vocabulary = o200k(scratch)
        return [
            {"engine": engine, "text_mb": size / 1e6, "failed": None}
            | _figures(engine, vocabulary, {"ordinary": ordinary, "huge": huge}, scratch)
            for engine in names
        ]
    finally:
        shutil.rmtree(scratch)


def write_both(ordinary: Path, huge: Path, documents: Iterator[str], *, megabytes: float) -> int:
    """Write ordinary documents, and all of them as one; the bytes of text.

    Raises:
        ValueError: there is not that much text.
    """
    taken, size = [], 0
    for text in documents:
        if len(text) <= _ORDINARY:
            taken.append(text)
            size += len(text.encode())
        if size >= megabytes * 1e6:
            break
    else:
        raise ValueError(f"{size / 1e6:.0f} MB of text are here, {megabytes:g} were asked for")
    with ordinary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in taken)
    huge.write_text(json.dumps({"text": "".join(taken)}) + "\n", encoding="utf-8")
    return size


def _figures(
    engine: str, vocabulary: Path, files: dict[str, Path], scratch: Path
) -> dict[str, Any]:
    """Seconds, tokens and peak memory for each of the two files, and the ratio of their seconds."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(_ROOT),
        "TOKENIZERS_PARALLELISM": "false",
        "RAYON_NUM_THREADS": "1",
    }
    figures: dict[str, Any] = {}
    for name, path in files.items():
        report, log = scratch / "report.json", scratch / "log"
        child = ["--child", engine, str(vocabulary), str(path), str(report)]
        usage = measure(
            [sys.executable, "-m", "jobs.bench.huge", *child],
            directory=scratch,
            environment=environment,
            log=log,
            limit_s=_LIMIT_S,
        )
        if usage.returncode:
            said = log.read_text(errors="replace").strip().splitlines() or ["nothing said"]
            why = f"not done after {_LIMIT_S:.0f} s" if usage.timed_out else said[-1][:200]
            return {"failed": f"{name}: {why}"}
        figures |= {f"{name}_{key}": value for key, value in json.loads(report.read_text()).items()}
        figures[f"{name}_peak_mib"] = usage.peak_bytes / 2**20
    return {**figures, "ratio": figures["huge_seconds"] / figures["ordinary_seconds"]}


def _child(engine: str, vocabulary: Path, path: Path, report: Path) -> None:
    settings = {"path": str(vocabulary), "eos_token": EOS, "engine": engine}
    source = SourceConfig(name="text", paths=(str(path),))
    inputs = list_inputs(source)
    (split,) = plan_splits(source, inputs, split_bytes=1 << 40)
    sample = sample_texts(source, inputs, split_bytes=1 << 40, max_characters=_SAMPLE)
    identity = choose_engine(
        resolve_tokenizer(TokenizerConfig.model_validate(settings)), engine, sample
    ).identity
    load_encoder(identity)
    out = path.with_suffix(".store")
    shutil.rmtree(out, ignore_errors=True)
    (out / "parts").mkdir(parents=True)
    started = time.perf_counter()
    receipt = tokenize_split(split, source, identity, out)
    seconds = time.perf_counter() - started
    figures = {
        "chosen": identity.engine,
        "seconds": seconds,
        "tokens": receipt.tokens,
        "documents": receipt.documents,
    }
    report.write_text(json.dumps(figures))


def main(arguments: list[str]) -> None:
    """`python -m jobs.bench.huge --megabytes 8 --engines hf`: print rows of any size."""
    if arguments[:1] == ["--child"]:
        _child(arguments[1], *map(Path, arguments[2:]))
        return
    parser = argparse.ArgumentParser(prog="python -m jobs.bench.huge")
    parser.add_argument("--megabytes", type=float, default=MEGABYTES)
    parser.add_argument("--engines", default=",".join(engines()))
    asked = parser.parse_args(arguments)
    for row in measure_engines(tuple(asked.engines.split(",")), megabytes=asked.megabytes):
        print(json.dumps(row))


if __name__ == "__main__":
    main(sys.argv[1:])
