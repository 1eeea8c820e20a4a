"""A small finished set to be damaged, what readers must give of it, and calls that may fail."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jobs.build import build
from jobs.chaos.corpus import write_corpus
from jobs.chaos.runs import digests
from jobs.cli import exit_status
from jobs.progress import Reporter
from pipeline.config_file import load_config
from pipeline.publish import WORK
from pipeline.shard.rank_reader import Reader
from pipeline.shard.reader import open_plan, open_shards
from pipeline.verify import verify

Rows = dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]
"""Tokens and last labels by step and slot."""


class WrongToken(Exception):
    """A reader gave other tokens, labels or chunks than the intact set has."""


@dataclass(frozen=True, slots=True)
class Met:
    """What a call came to: its exit status, None for a bug, and the line on stderr."""

    status: int | None
    line: str


def meet(call: Callable[[], Any]) -> Met:
    """Call something as the command line does."""
    try:
        call()
    except Exception as error:
        status = exit_status(error)
        text = str(error) if status is not None else repr(error)
        return Met(status, f"steelyard: {text}")
    return Met(0, "")


class SmallSet:
    """A set of some dozens of files, built in this process.

    Args:
        scratch: where it and its corpus go.
        seed: of the corpus.
    """

    def __init__(self, scratch: Path, *, seed: int = 0) -> None:
        config = write_corpus(
            scratch / "corpus",
            documents=120,
            seed=seed,
            executor="local",
            shard_tokens=65_536,
            split_bytes=262_144,
        )
        self.root = scratch / "set"
        self.config = load_config(config)
        build(self.config, self.root, Reporter(quiet=True))
        self.files = [self.root / name for name in digests(self.root)]
        reader = open_shards(self.root)
        self.cp_sizes = reader.manifest.cp_sizes
        self.truth: Rows = dict(_rows(reader))
        self.chunks = dict(_chunks(reader, self.cp_sizes))

    def copy(self, to: Path) -> Path:
        """Another copy of the set, to damage."""
        shutil.copytree(self.root, to, ignore=shutil.ignore_patterns(WORK))
        return to

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def verified(self, root: Path | None = None) -> Met:
        return meet(lambda: verify(root or self.root))

    def read(self, root: Path | None = None) -> list[Met]:
        """Read every row three ways: how each reading went that did not go well.

        Raises:
            WrongToken: something was read that is not so.
        """
        root = root or self.root
        return [
            *self._read(lambda: open_shards(root)),
            *self._read(lambda: open_plan(root)),
        ]

    def _read(self, opened: Callable[[], Reader]) -> list[Met]:
        readers: list[Reader] = []
        met = meet(lambda: readers.append(opened()))
        if met.status != 0:
            return [met]
        found = []
        for place in self.truth:
            met = meet(lambda place=place: self._compare(readers[0], *place))
            if met.status != 0:
                found.append(met)
        return found

    def _compare(self, reader: Reader, step: int, slot: int) -> None:
        batch = reader.micro_batch(step, slot)
        tokens, labels = self.truth[step, slot]
        if not (np.array_equal(batch.tokens, tokens) and np.array_equal(batch.last_labels, labels)):
            raise WrongToken(f"step {step}, slot {slot}")
        for size in self.cp_sizes:
            chunks = _flat(reader.chunks(step, slot, size))
            if not np.array_equal(chunks, self.chunks[step, slot, size]):
                raise WrongToken(f"step {step}, slot {slot}, CP degree {size}")


def _rows(reader: Reader) -> Iterator[tuple[tuple[int, int], tuple[np.ndarray, np.ndarray]]]:
    for step in range(reader.num_steps):
        for slot in range(reader.manifest.segment_of(step).num_micro_batches):
            batch = reader.micro_batch(step, slot)
            yield (step, slot), (batch.tokens.copy(), batch.last_labels.copy())


def _chunks(
    reader: Reader, sizes: tuple[int, ...]
) -> Iterator[tuple[tuple[int, int, int], np.ndarray]]:
    for step in range(reader.num_steps):
        for slot in range(reader.manifest.segment_of(step).num_micro_batches):
            for size in sizes:
                yield (step, slot, size), _flat(reader.chunks(step, slot, size))


def _flat(chunks: Any) -> np.ndarray:
    return np.stack([chunks.cp_rank, chunks.piece, chunks.start, chunks.stop])
