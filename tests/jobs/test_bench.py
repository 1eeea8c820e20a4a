"""The benchmarks' parts that could mislead: what is measured, on what, and how it is shown."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from jobs.bench import growth, scale_tables, stages
from jobs.bench.huge import write_both
from jobs.bench.mixed import gather, write_mixed
from jobs.bench.peers.convert import parse_ranks, tokenizer_json
from jobs.bench.peers.ids import Contents, contents
from jobs.bench.peers.run import compare
from jobs.bench.processes import Usage, measure
from jobs.bench.reader import PACKAGES
from jobs.bench.reader import compare as compare_ways
from jobs.bench.reader_corpus import make
from jobs.bench.reader_runs import WAYS
from jobs.bench.reader_runs import run as reader_run
from jobs.bench.tables import huge_table, orders_table, peers_table, reader_table

EOS = 9
PATTERN = r"\p{L}+|\s+|[^\p{L}\s]+"
MERGED = (b"ab", b"bc", b"abc", b"  ", b"aa", b"aaaa", b"\xc3\xa9", b"ca", b"bca", b"cab")
RANKS = {bytes([byte]): byte for byte in range(256)} | {
    token: 256 + number for number, token in enumerate(MERGED)
}


def test_the_table_of_peers_shows_figures_and_reasons() -> None:
    figures = {
        "seconds": 6.04,
        "stage_seconds": 3.5,
        "cpu_seconds": 7.25,
        "mb_per_s": 3.311,
        "stage_mb_per_s": 5.714,
        "peak_mib": 1300.4,
    }
    found = {"documents": 2, "tokens": 5_090_000, "fingerprint": "00"}
    row = {"tool": "datatrove", "does": "writes", "package": "datatrove", "failed": None}
    versions = {"datatrove": "0.10.1", "numpy": "2"}
    ours = {"tool": "tokenize-hf", "does": "stage", "package": None, "failed": None}
    failed = {"tool": "dolma", "does": "tokens", "package": "dolma", "versions": {}}
    rows = [
        row | figures | {"versions": versions, "found": found},
        failed | {"failed": "not installed: a | b\nc", "found": None},
        ours | figures | {"versions": versions, "found": found | {"fingerprint": "01"}},
    ]
    assert peers_table(compare(rows))[2:] == [
        "| datatrove 0.10.1 | writes | 6.0 | 3.5 | 7.2 | 3.31 | 5.71 | 5.09 | 1,300 | no |",
        "| dolma | tokens | not installed: a / b c | | | | | | | |",
        "| Steelyard tokenize-hf | stage | 6.0 | 3.5 | 7.2 | 3.31 | 5.71 | 5.09 | 1,300 | yes |",
    ]


def test_the_table_of_huge_documents_shows_ratios_and_reasons() -> None:
    rows = [
        {
            **{"engine": "hf", "text_mb": 64.0, "failed": None, "ratio": 1.5},
            **{"ordinary_seconds": 20.0, "huge_seconds": 30.0},
            **{"ordinary_peak_mib": 100.0, "huge_peak_mib": 1500.0},
        },
        {"engine": "other", "text_mb": 64.0, "failed": "huge: it panicked"},
    ]
    assert huge_table(rows)[2:] == [
        "| `hf` | 64 MB | 20.0 | 30.0 | 1.50 | 100 MiB | 1,500 MiB |",
        "| `other` | 64 MB | huge: it panicked | | | | |",
    ]


def test_the_table_of_orders_has_a_line_a_cluster_and_a_column_a_policy() -> None:
    row = {"num_micro_batches": 16, "dp_size": 4, "pp_size": 4, "virtual_stages": 1}
    plain = row | {"coupling": "gradient_sync", "plain": 1.25, "best": 1.1249, "order": "middle"}
    other = row | {"virtual_stages": 2, "coupling": "lockstep"}
    best = {"plain": 1.5, "best": 1.5, "order": "identity"}
    rows = [
        {"policy": name, **kind} for name in ("wlb", "reorder") for kind in (plain, other | best)
    ]
    assert orders_table(rows) == [
        "| N | dp, pp | ranks in lockstep | `wlb` | `reorder` |",
        "|---|---|---|---|---|",
        "| 16 | 4, 4 | no | 1.250, 1.125 `middle` | 1.250, 1.125 `middle` |",
        "| 16 | 4, 4 x 2 | yes | 1.500, 1.500 `identity` | 1.500, 1.500 `identity` |",
    ]


def test_the_mixed_corpus_depends_on_its_documents_alone(tmp_path: Path) -> None:
    documents = [("one", f"text {number}") for number in range(50)]
    documents += [("two", "text 7"), ("two", " \n"), ("two", "spells <|endoftext|>")]
    for name, order in (("first", documents[:50]), ("second", [*reversed(documents[:50])])):
        gather([*order, *documents[50:]], tmp_path / f"{name}.jsonl")
    first = (tmp_path / "first.jsonl").read_bytes()
    assert first == (tmp_path / "second.jsonl").read_bytes()
    texts = [json.loads(line)["text"] for line in first.splitlines()]
    assert sorted(texts) == sorted(text for _, text in documents[:50])
    assert texts == sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())


def test_a_smaller_corpus_is_the_head_of_a_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{number} " * 100 for number in range(200)]
    monkeypatch.setattr("jobs.bench.debian.available", lambda: False)
    monkeypatch.setattr("jobs.bench.corpus.texts", lambda: iter(texts))
    small, large = (
        write_mixed(tmp_path / name, megabytes=size, cache=tmp_path)
        for name, size in (("small", 0.02), ("large", 0.06))
    )
    lines = [
        b"".join(Path(file).read_bytes() for file in corpus.files) for corpus in (small, large)
    ]
    assert len(small.files) == 8
    assert lines[1].startswith(lines[0])
    assert small.text_bytes >= 20_000
    assert small.sha256 == hashlib.sha256(lines[0]).hexdigest()
    assert small == write_mixed(tmp_path / "small", megabytes=0.02, cache=tmp_path)
    with pytest.raises(ValueError, match="ask for less"):
        write_mixed(tmp_path / "all", megabytes=1, cache=tmp_path)


def test_a_huge_document_holds_what_the_ordinary_ones_hold(tmp_path: Path) -> None:
    ordinary, huge = tmp_path / "ordinary.jsonl", tmp_path / "huge.jsonl"
    texts = iter(["a" * 400, "é" * 70_000, "b\n" * 300, "c"])
    assert write_both(ordinary, huge, texts, megabytes=0.001) == 1000
    lines = [json.loads(line)["text"] for line in ordinary.read_text().splitlines()]
    assert [json.loads(huge.read_text())["text"]] == ["".join(lines)] == ["a" * 400 + "b\n" * 300]


def ids_by_ranks(word: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """The slow twin: merge the neighbours of lowest rank, the first of them, until none is left."""
    parts = [bytes([byte]) for byte in word]
    while True:
        unions = [
            (ranks[parts[i] + parts[i + 1]], i)
            for i in range(len(parts) - 1)
            if parts[i] + parts[i + 1] in ranks
        ]
        if not unions:
            return [ranks[part] for part in parts]
        _, place = min(unions)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


@pytest.fixture(scope="module")
def converted() -> Tokenizer:
    return Tokenizer.from_str(tokenizer_json(RANKS, PATTERN, {"<|endoftext|>": 300}))


@given(word=st.text(alphabet="abcé", min_size=1, max_size=12))
@settings(max_examples=200, deadline=None)
def test_converted_ranks_give_the_ids_of_the_ranks(converted: Tokenizer, word: str) -> None:
    expected = ids_by_ranks(word.encode(), RANKS)
    if word.encode() in RANKS:
        expected = [RANKS[word.encode()]]  # tiktoken looks a whole word up first
    assert converted.encode(word).ids == expected


def test_converted_ranks_agree_with_tiktoken(converted: Tokenizer) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    oracle = tiktoken.Encoding(
        "toy", pat_str=PATTERN, mergeable_ranks=RANKS, special_tokens={"<|endoftext|>": 300}
    )
    text = "abcabcaaaaa  bca é?\u00a0\n\n  aab𝄞cab " * 3
    assert converted.encode(text).ids == oracle.encode_ordinary(text)
    assert converted.decode(converted.encode(text).ids) == text
    assert converted.token_to_id("<|endoftext|>") == 300


def test_ranks_that_are_no_byte_pair_encoding_are_refused() -> None:
    with pytest.raises(ValueError, match="do not merge b'xyz'"):
        tokenizer_json({**RANKS, b"xyz": 400}, PATTERN, {})


def test_ranks_are_read_from_lines_of_base64() -> None:
    assert parse_ranks(b"IQ== 0\nYWI= 1\n\n") == {b"!": 0, b"ab": 1}


def _found(*files: list[int], chunk: int = 100) -> Contents:
    arrays = [np.array(file, np.uint32) for file in files]
    chunked = ((a[i : i + chunk] for i in range(0, len(a), chunk)) for a in arrays)
    return contents(chunked, eos=EOS)


def test_contents_do_not_depend_on_the_order_of_documents() -> None:
    one = _found([1, 2, EOS, 3, EOS, EOS])
    assert (one.documents, one.tokens) == (3, 6)
    assert one == _found([3, EOS, EOS], [1, 2, EOS]) == _found([1, 2, EOS, 3, EOS, EOS], chunk=1)


def test_contents_tell_other_documents_apart() -> None:
    one = _found([1, 2, EOS, 3, EOS])
    assert one != _found([1, 3, EOS, 2, EOS])
    assert one != _found([1, EOS, 2, 3, EOS])
    with pytest.raises(ValueError, match="1 ids stand after the last EOS"):
        _found([1, EOS, 2])


def _measured(code: str, tmp_path: Path, *, limit_s: float = 30.0) -> Usage:
    return measure(
        [sys.executable, "-c", code],
        directory=tmp_path,
        environment=os.environ,
        log=tmp_path / "log",
        limit_s=limit_s,
    )


def test_the_work_of_a_process_left_behind_is_counted(tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "if os.fork(): os._exit(3)\n"
        "os.setsid()\n"
        "held = bytearray(os.urandom(50_000_000))\n"
        "while time.process_time() < 0.7: pass\n"
        "time.sleep(2)\n"  # long enough to be seen where the machine is busy
    )
    usage = _measured(code, tmp_path)
    assert usage.returncode == 3
    assert not usage.timed_out
    assert usage.cpu_seconds >= 0.7
    assert usage.peak_bytes >= 50_000_000


def test_a_command_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    usage = _measured("import time; time.sleep(60)", tmp_path, limit_s=0.2)
    assert usage.timed_out
    assert usage.seconds < 30
    assert usage.returncode != 0


@pytest.mark.slow
@pytest.mark.ray
def test_every_way_of_reading_gives_the_same_micro_batches(tmp_path: Path) -> None:
    layouts = make(tmp_path / "read", tokens=3_000_000, context_length=4096, vocabulary=70_000)
    assert layouts.dtype == "uint32"
    assert layouts.tokens > 1_000_000
    ours = [way for way in WAYS if way not in PACKAGES]
    found = [reader_run(way, layouts.root) for way in ours]
    assert len(ours) == 4
    assert {(row["tokens"], row["digest"]) for row in found} == {
        (layouts.tokens, found[0]["digest"])
    }
    # A token that differs is seen.
    ids = np.memmap(layouts.root / "flat/tokens.bin", np.uint32, mode="r+")
    ids[1000] += 1
    ids.flush()
    assert reader_run("raw mmap", layouts.root)["digest"] != found[0]["digest"]


def test_the_table_of_reading_shows_shares_of_the_mmap_and_reasons() -> None:
    kept = {"context_length": 131_072, "dtype": "uint32", "checks": "XXH3", "package": None}
    rates = {"tokens_per_cpu_s": 1.5e8, "tokens_per_s": 1.2e8, "failed": None}
    rows = [
        kept | rates | {"way": "shards", "digest": "00"},
        kept | rates | {"way": "raw mmap", "digest": "01", "tokens_per_cpu_s": 6e8},
        kept | {"way": "other", "package": "x==1", "failed": "not\n installed: a | b"},
    ]
    assert reader_table(compare_ways(rows))[2:] == [
        "| 131,072 | uint32 | shards | XXH3 | 150 | 120 | 0.25 | yes |",
        "| 131,072 | uint32 | raw mmap | XXH3 | 600 | 120 | 1.00 | no |",
        "| 131,072 | uint32 | other (x==1) | XXH3 | not installed: a / b | | | |",
    ]


@pytest.mark.slow
def test_planning_a_larger_corpus_is_measured_on_lengths_alone(tmp_path: Path) -> None:
    growth.write_lengths(tmp_path / "lengths.u32", 30_000)
    row = growth.measure_plan(tmp_path, "reorder", 20_000)
    assert row["documents"] == row["pieces"] == 20_000
    lengths = np.fromfile(tmp_path / "lengths.u32", "<u4", count=20_000)
    assert row["tokens"] == lengths.sum()
    assert row["steps"] > 0 < row["peak_mib"]
    assert row["plan"] > 0 < row["scratch"]
    assert not (tmp_path / "out").exists()
    (line,) = scale_tables.growth_table([row])[2:]
    assert line.startswith("| `reorder` | 20,000 | 0.0B |")


def test_lengths_without_tokens_are_summed_part_by_part(tmp_path: Path) -> None:
    path, documents = tmp_path / "lengths.u32", 1_050_000
    np.arange(documents, dtype="<u4").tofile(path)
    tracemalloc.start()
    store = growth.LengthsOnly(path, documents)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * documents  # a copy in 64 bits would be four times that
    assert store.tokens == store.parts.tokens.sum() == documents * (documents - 1) // 2
    assert store.parts.tokens[0] == sum(range(100_000))
    assert store.parts.documents.tolist() == [100_000] * 10 + [50_000]


@pytest.mark.slow
def test_stages_are_those_of_a_build_and_its_check(tmp_path: Path) -> None:
    rows = stages.stages(tmp_path, 1.5)
    names = [row["stage"] for row in rows]
    assert names == [
        "tokenize text", "plan", "move: read runs", "move: write shards", "cp plan 2", "cp plan 4",
        "verify",
    ]  # fmt: skip
    assert len({row["tokens"] for row in rows}) == 1
    shown = scale_tables.stages_table([{**rows[0], "tokens_per_cpu_s": 10**6}])[2:]
    assert shown == ["| tokenize text | 1.0M | 278 | 4,167 | 4.17 |"]
