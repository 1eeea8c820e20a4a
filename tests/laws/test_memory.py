"""Law 8: nothing holds the corpus, nor a table of all its documents. Hoarders are noticed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import cut_source
from packer import stream as stream_module
from packer.cut_source import SourceLengths
from packer.packing.config import PackingConfig
from packer.packing.packer import Packer
from packer.permutation import permute
from packer.plan import Pieces, Steps
from packer.stream import Stream
from packer.workload import Workload
from pipeline.planning import runs
from pipeline.planning.chain import ChainEnd
from pipeline.planning.plan_parts import PlanParts
from pipeline.planning.runs import RunGroups, read_inverse, write_inverse
from pipeline.reading.listing import list_inputs
from pipeline.reading.records import read
from pipeline.reading.splits import plan_splits
from pipeline.shard import store_tables
from pipeline.shard.store_tables import map_file
from tests.corpora import source_of, write_jsonl
from tests.laws.noticed import noticed

MIB = 1 << 20
DOCUMENTS = 1 << 20
GROUP = RunGroups(source_base=np.zeros(1, np.int64), starts=np.zeros(1, np.int64))
STORES: Any = [None]
CHAIN = ChainEnd.start(STORES)
"""Of one source, whose store nobody reads."""


def peak_of(work: Callable[[], object]) -> int:
    """Most bytes that Python and NumPy held at once for this; mapped files are none."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestPermutation:
    PLACES = np.arange(1000)

    def check(self, shuffle: Callable[..., np.ndarray]) -> None:
        shuffle(self.PLACES, size=DOCUMENTS, key=1)  # compiled by now
        assert peak_of(lambda: shuffle(self.PLACES, size=DOCUMENTS, key=1)) < MIB

    def test_is_computed(self) -> None:
        self.check(permute)
        assert peak_of(lambda: permute(self.PLACES, size=1 << 62, key=1)) < MIB

    def test_from_a_table_is_noticed(self) -> None:
        def table(index: np.ndarray, *, size: int, key: int) -> np.ndarray:
            return np.random.default_rng(key).permutation(size)[index]

        with noticed():
            self.check(table)


class TestLengths:
    """A source of a million documents, whose lengths are 4 MiB in a file."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        np.ones(DOCUMENTS, "<u4").tofile(tmp_path / "lengths.u32")
        return tmp_path / "lengths.u32"

    def check(self, path: Path) -> None:
        def read_through() -> None:
            lengths = store_tables.map_file(path, np.dtype("<u4"), DOCUMENTS)
            stream = Stream([SourceLengths(lengths=lengths)], seed=0, context_length=8)
            for _, pieces in zip(range(8), stream.chunks(1 << 12), strict=False):
                assert len(pieces) == 1 << 12

        assert peak_of(read_through) < 2 * MIB

    @pytest.fixture(autouse=True)
    def small_scans(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cut_source, "SCAN_DOCUMENTS", 1 << 13)
        monkeypatch.setattr(stream_module, "LARGEST_QUEUE", 1 << 12)
        warm = Stream([SourceLengths(lengths=np.ones(9, np.uint32))], seed=0, context_length=8)
        assert sum(map(len, warm.chunks())) == 9  # compiled by now

    def test_are_mapped_and_read_through_in_blocks(self, path: Path) -> None:
        self.check(path)

    def test_that_are_loaded_are_noticed(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def load(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
            return np.array(map_file(path, dtype, count))

        monkeypatch.setattr(store_tables, "map_file", load)
        with noticed():
            self.check(path)

    def test_that_are_scanned_at_once_are_noticed(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cut_source, "SCAN_DOCUMENTS", 1 << 40)
        with noticed():
            self.check(path)

    def test_that_are_shuffled_as_a_table_are_noticed(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def table(index: np.ndarray, *, size: int, key: int) -> np.ndarray:
            return permute(np.arange(size), size=size, key=key)[index]

        monkeypatch.setattr(cut_source, "permute", table)
        with noticed():
            self.check(path)


class TestPlanning:
    CONFIG = PackingConfig(num_micro_batches=2, context_length=512, max_tokens=512)

    LENGTHS = np.tile([5, 60, 17, 33, 64, 2], 10_000)

    def plan(self, documents: int, root: Path) -> None:
        lengths = self.LENGTHS[:documents]
        stream = Stream([SourceLengths(lengths=lengths)], seed=0, context_length=512)
        packer = Packer("concat", self.CONFIG, Workload(crossover=20))
        parts = PlanParts(root, root, groups=GROUP, steps_per_part=128, chain=CHAIN)
        for steps in packer.steps_of(stream.chunks(2000)):
            parts.add(steps)
        parts.finish(packer.tail)

    def check(self, root: Path) -> None:
        """Six times the documents take hardly more memory."""
        self.plan(100, root)  # compiled by now
        few, many = (peak_of(lambda n=n: self.plan(n, root)) for n in (6_000, 36_000))
        assert many < 1.5 * few, (few, many)

    def test_goes_window_by_window(self, tmp_path: Path) -> None:
        self.check(tmp_path)

    def test_of_a_stream_that_comes_at_once_is_noticed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chunks = Stream.chunks

        def gathered(stream: Stream, num_pieces: int) -> list[Pieces]:
            return [Pieces.concatenate(list(chunks(stream, num_pieces)))]

        monkeypatch.setattr(Stream, "chunks", gathered)
        with noticed():
            self.check(tmp_path)

    def test_that_keeps_its_steps_to_the_end_is_noticed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def hold(parts: Any, steps: Steps) -> None:
            parts._held.append(steps)
            parts.num_steps += steps.num_steps

        monkeypatch.setattr(PlanParts, "add", hold)
        with noticed():
            self.check(tmp_path)


class TestInverses:
    def check(self, root: Path) -> None:
        assert peak_of(lambda: read_inverse(root, 0, 7)) < MIB

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        pieces = Pieces.from_lengths(np.ones(1 << 17, np.int64))
        groups = RunGroups(source_base=np.zeros(1, np.int64), starts=np.arange(0, 1 << 17, 1 << 10))
        write_inverse(tmp_path, 0, pieces, groups)
        return tmp_path

    def test_are_read_group_by_group(self, root: Path) -> None:
        self.check(root)

    def test_that_are_read_whole_are_noticed(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load = np.load
        monkeypatch.setattr(runs.np, "load", lambda path, mmap_mode: load(path))
        with noticed():
            self.check(root)


class TestRecords:
    """Eight MiB of lines, read in batches of at most one."""

    def check(self, path: Path) -> None:
        source = source_of(path)
        (split,) = plan_splits(source, list_inputs(source), split_bytes=1 << 30)

        def read_through() -> int:
            return sum(len(batch.texts) for batch in read.read_records(split, source))

        assert peak_of(read_through) < 5 * MIB

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return write_jsonl(tmp_path / "a.jsonl", ["x" * 4000] * 2048)

    def test_come_in_batches(self, path: Path) -> None:
        self.check(path)

    def test_that_come_all_at_once_are_noticed(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(read, "BATCH_BYTES", 1 << 40)
        monkeypatch.setattr(read, "BATCH_RECORDS", 1 << 40)
        with noticed():
            self.check(path)
