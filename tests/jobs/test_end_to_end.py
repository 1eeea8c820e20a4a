"""From a record to what is trained on, with the tokenizer's own library and DuckDB alone."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from jobs.build import build
from jobs.progress import Reporter
from pipeline.config import RunConfig
from tests.corpora import EOS_ID
from tests.jobs.command_line import to_toml
from tests.jobs.small_run import digests, small_config


def expected_documents(config: RunConfig) -> dict[tuple[int, int], list[int]]:
    """(source, doc_id) -> token ids, by reading the corpus with the standard library alone."""
    tokenizer = Tokenizer.from_file(config.tokenizer.path)
    first, second = (Path(path) for path in config.sources[0].paths)
    third, tree = (Path(path) for path in config.sources[1].paths)
    packed = gzip.decompress(second.read_bytes()).decode()
    lines = first.read_text().splitlines() + packed.splitlines()
    texts = [json.loads(line)["text"] for line in lines if line != "{broken"]
    rows = [text for text in pq.read_table(third)["text"].to_pylist() if text.strip()]
    names = sorted(os.listdir(tree), key=str.encode)
    rows += [(tree / name).read_text() for name in names]
    return {
        (source, doc_id): [*tokenizer.encode(text).ids, EOS_ID]
        for source, documents in enumerate((texts, rows))
        for doc_id, text in enumerate(documents)
    }


def test_every_document_is_in_the_shards_once_and_whole(tmp_path: Path) -> None:
    config = small_config(tmp_path / "corpus")
    root = tmp_path / "out"
    build(config, root, Reporter(quiet=True))
    rows = duckdb.sql(
        f"""
        SELECT source[i], doc_id[i], doc_start[i],
               tokens[cu_seqlens[i] + 1 : cu_seqlens[i + 1]], last_labels[i]
        FROM (SELECT *, unnest(range(1, len(doc_id) + 1)) AS i
              FROM read_parquet('{root}/shards/*.parquet'))
        ORDER BY 1, 2, 3
        """
    ).fetchall()
    tail = duckdb.sql(
        f"SELECT source, doc_id, doc_start, doc_stop FROM '{root}/tail.parquet'"
    ).fetchall()
    expected = expected_documents(config)
    pieces = {
        (source, doc_id, start): (tokens, label) for source, doc_id, start, tokens, label in rows
    }
    for source, doc_id, start, stop in tail:  # listed, not placed: the rest must fit around it
        document = expected[source, doc_id]
        label = document[stop] if stop < len(document) else -100
        pieces[source, doc_id, start] = document[start:stop], label
    assert len(pieces) == len(rows) + len(tail)

    found: dict[tuple[int, int], list[int]] = {}
    next_token: dict[tuple[int, int], int] = {}
    for (source, doc_id, start), (tokens, label) in sorted(pieces.items()):
        document = found.setdefault((source, doc_id), [])
        assert len(document) == start  # disjoint, in order, nothing missing
        assert not document or next_token[source, doc_id] == tokens[0]
        document.extend(tokens)
        next_token[source, doc_id] = label
    assert set(next_token.values()) == {-100}
    assert found == expected
    assert any(len(document) > 3 * config.packing.context_length for document in found.values())


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("seconds", [5.0, 9.0])
def test_a_driver_killed_outright_and_run_again_ends_the_same(
    tmp_path: Path, seconds: float
) -> None:
    config = small_config(tmp_path / "corpus")
    job = config.job.model_copy(update={"executor": "ray", "workers": 2, "object_store_mb": 100})
    document = config.model_copy(update={"job": job}).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    (tmp_path / "run.toml").write_text(to_toml(document))
    command = [sys.executable, "-m", "jobs", "build", "--config", str(tmp_path / "run.toml")]
    killed = subprocess.Popen([*command, "--out", str(tmp_path / "killed")])
    time.sleep(seconds)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    subprocess.run([*command, "--out", str(tmp_path / "killed")], check=True)
    build(config, tmp_path / "whole", Reporter(quiet=True))
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
