"""Every bad record, in every format, through splits to a store: exact counts, nothing shifted."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.settings.documents import SourceConfig
from pipeline.shard.token_store import TokenStore
from pipeline.tokenizer.engine import decode
from pipeline.verify.origins import check_origins, part_origins
from tests.bad_corpus import EXPECTED, FOLDERS, MANY, TRUNCATED, good, write_bad_corpus
from tests.corpora import build_store, source_of, tiny_identity

Numbers = dict[str, list[int]]
Counts = dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bad_corpus(tmp_path_factory.mktemp("bad"))


def source(corpus: Path) -> SourceConfig:
    return source_of(*(corpus / folder for folder in FOLDERS))


def read_back(directory: Path) -> tuple[Numbers, Counts]:
    """Record numbers of each file's documents, and its rejects by reason; texts are checked."""
    store = TokenStore(directory)
    numbers: Numbers = defaultdict(list)
    names = pq.read_table(directory / "inputs.parquet")["path"].to_pylist()
    for part in range(len(store.parts)):
        offsets, ids = (
            store.part_offsets(part),
            np.fromfile(store.part_path(part, "tokens"), store.dtype),
        )
        rows = pq.read_table(store.part_path(part, "index.parquet")).to_pylist()
        for row, start, stop in zip(rows, offsets[:-1], offsets[1:], strict=True):
            name, record = names[row["file"]], row["record"]
            if row["file"] == store.parts.file[part]:
                record += int(store.parts.first_record[part])
            numbers[name].append(record)
            assert decode(tiny_identity(), ids[start : stop - 1]) == good(name, record)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in pq.read_table(directory / "rejects.parquet").to_pylist():
        counts[row["path"]][row["reason"]] += 1
    assert sum(map(Counter, counts.values()), Counter()) == store.identity["rejected"]
    return dict(numbers), {name: dict(found) for name, found in counts.items()}


@pytest.mark.parametrize("split_bytes", [64, 1 << 20])
def test_every_bad_record_is_refused_alone_and_counted_once(
    corpus: Path, tmp_path: Path, split_bytes: int
) -> None:
    numbers, counts = read_back(build_store(source(corpus), tmp_path, split_bytes=split_bytes))
    for name in TRUNCATED:
        documents = numbers.pop(name)
        assert documents == list(range(len(documents)))
        assert 0 < len(documents) < len(MANY)
        assert counts.pop(name) == {"truncated": 1}
    assert numbers == {name: documents for name, (documents, _) in EXPECTED.items() if documents}
    assert counts == {name: rejected for name, (_, rejected) in EXPECTED.items() if rejected}


@pytest.mark.parametrize("split_bytes", [64, 1 << 20])
def test_verify_finds_every_record_where_the_tables_say(
    corpus: Path, tmp_path: Path, split_bytes: int
) -> None:
    store = build_store(source(corpus), tmp_path, split_bytes=split_bytes)
    tables = {
        name: pq.read_table(store / name)
        for name in ("inputs.parquet", "parts.parquet", "rejects.parquet")
    }
    found = part_origins(tables, store, "auto")
    for part, origins in enumerate(found):
        path = store / "parts" / f"{part:05d}.index.parquet"
        check_origins(pq.read_table(path), origins, path)
    rejects = sum(len(origins.refused.file) for origins in found)
    assert rejects == tables["rejects.parquet"].num_rows > 50
    assert sum(origins.is_whole for origins in found) >= 3
