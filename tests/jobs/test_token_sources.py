"""Builds from what a team has tokenized already, from the command line to the shards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pipeline.config_file import parse_config
from pipeline.shard.reader import open_shards
from pipeline.shard.token_store import TokenStore
from tests.corpora import EOS, EOS_ID, WORDS, tiny_identity, tiny_tokenizer, write_jsonl
from tests.jobs.command_line import run, to_toml
from tests.pipeline.test_megatron import EXPECTED, FIXTURES
from tests.pipeline.test_token_columns import write_ids

PAIR = str(FIXTURES / "one_sequence")
DOCUMENTS = [ids for ids in EXPECTED["one_sequence"] if ids]


def build(directory: Path, sources: Sequence[dict[str, Any]], **tokenizer: Any) -> Path:
    """Build a set from the command line and have it verified; its directory."""
    document = {
        "tokenizer": tokenizer,
        "sources": list(sources),
        "packing": {"num_micro_batches": 2, "context_length": 64, "policy": "reorder"},
        "workload": {"crossover": 50},
        "shards": {"shard_tokens": 512, "split_bytes": 1024, "run_tokens": 1024},
        "job": {"executor": "local"},
    }
    parse_config(document, name="test")
    config, out = directory / "run.toml", directory / "out"
    config.write_text(to_toml(document))
    assert run("build", "--config", str(config), "--out", str(out)) == 0
    assert run("verify", str(out), "--quiet") == 0
    return out


def documents_in(root: Path) -> dict[tuple[int, int], list[int]]:
    """(source, doc_id) -> the ids that the shards have of it, in order."""
    reader = open_shards(root)
    pieces: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
    for step in range(reader.num_steps):
        for slot in range(2):
            batch = reader.micro_batch(step, slot)
            bounds = batch.cu_seqlens.tolist()
            for i, (first, last) in enumerate(pairwise(bounds)):
                document = int(batch.source[i]), int(batch.doc_id[i])
                piece = int(batch.doc_start[i]), batch.tokens[first:last].tolist()
                pieces.setdefault(document, []).append(piece)
    return {
        document: [token for _, ids in sorted(found) for token in ids]
        for document, found in pieces.items()
    }


def test_a_megatron_dataset_becomes_a_set_with_the_same_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = {"name": "web", "paths": [PAIR], "format": "megatron"}
    root = build(tmp_path, [source], vocab_size=320)
    progress = capsys.readouterr().err
    assert "tokenizer none: sources bring ids below 320" in progress
    assert "source web brings its own tokens; ends as given, nothing is added" in progress
    assert "rejected 1 no_tokens" in progress

    manifest = open_shards(root).manifest
    found = documents_in(root)
    tail = manifest.totals["tail_tokens"]
    assert sum(map(len, found.values())) == sum(map(len, DOCUMENTS)) - tail
    assert tail < 2 * 64 + max(map(len, DOCUMENTS))
    cut_by_the_tail = [doc_id for (_, doc_id), ids in found.items() if ids != DOCUMENTS[doc_id]]
    assert len(cut_by_the_tail) <= 1
    assert len(found) > 60
    assert manifest.tokenizer["sha256"] == ""

    assert run("inspect", str(root), "--step", "0") == 0
    capsys.readouterr()
    assert run("inspect", str(root), "--step", "0", "--text", "9") == 2
    assert "there is no vocabulary to encode or decode with" in capsys.readouterr().err


def test_sources_of_tokens_and_of_text_share_a_set_and_say_whose_ends_are_whose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    column = write_ids(tmp_path / "ids.parquet", [[5, 6, 7], [8, EOS_ID]] * 40)
    lines = write_jsonl(tmp_path / "text.jsonl", [" ".join(WORDS)] * 40)
    sources = [
        {"name": "given", "paths": [PAIR + ".bin"], "format": "megatron"},
        {"name": "ended", "paths": [str(column)], "token_column": "input_ids", "ends": "add"},
        {"name": "text", "paths": [str(lines)]},
    ]
    root = build(tmp_path, sources, path=str(tiny_tokenizer()), eos_token=EOS)
    progress = capsys.readouterr().err
    assert "source given brings its own tokens; ends as given, nothing is added" in progress
    assert "source ended brings its own tokens; EOS id 1 after every document" in progress
    assert "source text" not in progress
    manifest = open_shards(root).manifest
    stores = [TokenStore(manifest.store_path(index)) for index in range(3)]
    assert [store.identity.get("ends") for store in stores] == ["as_given", "add", None]
    found = documents_in(root)
    whole = [ids for (source, _), ids in found.items() if source == 1]
    assert sum(ids in ([5, 6, 7, EOS_ID], [8, EOS_ID]) for ids in whole) >= len(whole) - 1
    assert len(whole) > 60
    size = tiny_identity().vocab_size  # below the largest id of the dataset
    known = [ids for ids in DOCUMENTS if max(ids) < size]
    assert stores[0].identity["rejected"]["id_out_of_range"] == len(DOCUMENTS) - len(known) > 0
    given = [ids == known[doc_id] for (source, doc_id), ids in found.items() if source == 0]
    assert sum(given) >= len(known) - 8  # what the tail cuts or holds
    assert run("inspect", str(root), "--step", "0", "--text", "9") == 0


def test_the_same_build_again_finds_its_stores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [{"name": "web", "paths": [PAIR], "format": "megatron"}]
    root = build(tmp_path, sources, vocab_size=320)
    (root / "manifest.json").unlink()
    capsys.readouterr()
    build(tmp_path, sources, vocab_size=320)
    assert "tokenize web: there already" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["idx", "column", "store"])
def test_simulate_reads_what_is_tokenized_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    places = {"idx": f"{PAIR}.idx"}
    if where == "column":
        path = write_ids(tmp_path / "ids.parquet", [*EXPECTED["one_sequence"], None])
        places["column"] = f"{path}:input_ids"
    if where == "store":
        sources = [{"name": "web", "paths": [PAIR], "format": "megatron"}]
        root = build(tmp_path, sources, vocab_size=320)
        places["store"] = str(next(root.glob("store/web-*")))
    shape = ["--num-micro-batches", "2", "--context-length", "64", "--crossover", "50"]
    plain = tmp_path / "lengths.json"
    plain.write_text(json.dumps([len(ids) for ids in DOCUMENTS]))
    figures = []
    for lengths in (str(plain), places[where]):
        capsys.readouterr()
        arguments = ["--lengths", lengths, *shape, "--policies", "concat", "--json"]
        assert run("simulate", *arguments) == 0
        (row,) = json.loads(capsys.readouterr().out)
        figures.append([row[name] for name in ("placed_tokens", "total_workload", "excess")])
    assert figures[0] == figures[1]


def test_simulate_refuses_a_damaged_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.idx"
    path.write_bytes(Path(f"{PAIR}.idx").read_bytes()[:-1])
    shape = ["--num-micro-batches", "2", "--context-length", "64"]
    assert run("simulate", "--lengths", str(path), *shape) == 2
    assert "document indices make" in capsys.readouterr().err
