"""Short and long documents from the configuration to the shards, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from jobs.build import build
from pipeline.config import RunConfig
from pipeline.config_file import parse_config
from pipeline.planning.mixing import PlanError
from pipeline.planning.plan import plan_key
from pipeline.report import report
from pipeline.shard.manifest import load_manifest
from pipeline.shard.reader import open_plan, open_shards
from pipeline.verify import verify
from tests.corpora import EOS, EOS_ID, texts_of_lengths, tiny_tokenizer, write_jsonl
from tests.jobs.small_run import QUIET

CONTEXT = 32
LONG = [100, 33, 64, 250]
LENGTHS = {
    "a": [*([7, 20, 32, 5, 12] * 12), *LONG],  # 60 documents of 912 tokens, 4 of 447
    "b": [3, 90, *([16] * 20)],
}
ONE = {"one": [21]}


def config_of(
    directory: Path, lengths_of: dict[str, list[int]] = LENGTHS, **tables: Any
) -> RunConfig:
    sources = []
    for seed, (name, lengths) in enumerate(lengths_of.items()):
        path = directory / f"{name}.jsonl"
        if not path.exists():
            write_jsonl(path, texts_of_lengths(lengths, seed=seed))
        sources.append({"name": name, "paths": [str(path)], **tables.pop(name, {})})
    return parse_config(
        {
            "tokenizer": {"path": str(tiny_tokenizer()), "eos_token": EOS},
            "sources": sources,
            "packing": {
                "num_micro_batches": 2, "context_length": CONTEXT, "max_tokens": 48,
                "policy": "reorder",
            },
            "workload": {"crossover": 40},
            "shards": {"shard_tokens": 512, "store": str(directory / "stores")},
            "job": {"executor": "local"},
            **tables,
        },
        name="documents",
    )  # fmt: skip


def last_tokens_and_labels(root: Path) -> dict[tuple[int, int, int, int], tuple[int, int, int]]:
    """(source, epoch, doc_id, start) -> tokens, last token, last label; from the shards."""
    found = {}
    for path in sorted((root / "shards").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            for i, doc_id in enumerate(row["doc_id"]):
                first, stop = row["cu_seqlens"][i : i + 2]
                key = (row["source"][i], row["epoch"][i], doc_id, row["doc_start"][i])
                found[key] = (stop - first, row["tokens"][stop - 1], row["last_labels"][i])
    return found


def test_a_truncated_document_that_concat_cuts_goes_on_until_it_is_truncated(
    tmp_path: Path,
) -> None:
    config = config_of(tmp_path, documents={"longer_than_context": "truncate"})
    packing = config.packing.model_copy(update={"policy": "concat"})
    root = tmp_path / "out"
    build(config.model_copy(update={"packing": packing}), root, QUIET)
    verify(root)
    pieces = last_tokens_and_labels(root)
    ends = {
        key: (key[3] + tokens == min(CONTEXT, LENGTHS["ab"[key[0]]][key[2]]), label)
        for key, (tokens, _, label) in pieces.items()
    }
    assert {is_end for is_end, _ in ends.values()} == {True, False}
    assert all((label == -100) == is_end for is_end, label in ends.values())
    shards, plan = open_shards(root), open_plan(root)
    for step in range(shards.num_steps):
        one, other = shards.micro_batch(step, 0), plan.micro_batch(step, 0)
        assert np.array_equal(one.last_labels, other.last_labels)


@pytest.mark.parametrize("policy", ["truncate", "drop"])
def test_long_documents_are_truncated_or_dropped_and_all_of_it_is_counted(
    policy: str, tmp_path: Path
) -> None:
    config = config_of(tmp_path, documents={"longer_than_context": policy, "min_tokens": 5})
    root = tmp_path / "out"
    build(config, root, QUIET)
    verify(root)
    pieces = last_tokens_and_labels(root)
    assert {key[3] for key in pieces} == {0}
    long = {(0, doc_id) for doc_id in range(60, 64)} | {(1, 1)}
    placed_long = {key[:1] + key[2:3] for key in pieces} & long
    assert bool(placed_long) == (policy == "truncate")
    for (source, _, doc_id, _), (tokens, last_token, last_label) in pieces.items():
        assert last_label == -100
        assert (last_token == EOS_ID) == ((source, doc_id) not in long)
        assert tokens == min(CONTEXT, LENGTHS["ab"[source]][doc_id])

    totals = load_manifest(root).totals
    over = [*LONG, 90]
    expected = {
        "too_short_documents": 1,
        "too_short_tokens": 3,
        "too_long_documents": 5 if policy == "drop" else 0,
        "too_long_tokens": sum(over) if policy == "drop" else 0,
        "truncated_documents": 5 if policy == "truncate" else 0,
        "truncated_tokens": sum(over) - 5 * CONTEXT if policy == "truncate" else 0,
        "unselected_documents": 0,
        "unselected_tokens": 0,
        "cut_documents": 0,
    }
    assert {name: totals[name] for name in expected} == expected
    set_aside = sum(expected[f"{why}_tokens"] for why in ("too_short", "too_long", "truncated"))
    assert totals["placed_tokens"] + totals["tail_tokens"] + set_aside == totals["tokens"]
    shards, plan = open_shards(root), open_plan(root)
    for step in range(shards.num_steps):
        for slot in range(2):
            one, other = shards.micro_batch(step, slot), plan.micro_batch(step, slot)
            assert np.array_equal(one.tokens, other.tokens)
            assert np.array_equal(one.last_labels, other.last_labels)


def test_an_error_comes_before_anything_is_planned_and_names_the_documents(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, documents={"longer_than_context": "error"}, b={"longer_than_context": "cut"}
    )
    with pytest.raises(PlanError) as caught:
        build(config, tmp_path / "out", QUIET)
    assert str(caught.value) == (
        "source 'a' has 4 documents longer than packing.context_length 32, and its "
        'longer_than_context is "error": document 60 (a.jsonl, record 60) of 100 tokens, document '
        "61 (a.jsonl, record 61) of 33 tokens, document 62 (a.jsonl, record 62) of 64 tokens and "
        "1 more; raise packing.context_length, or set documents.longer_than_context to "
        '"cut", "truncate" or "drop"'
    )
    assert not list((tmp_path / "out").glob("plan/*"))
    short = config_of(
        tmp_path, documents={"longer_than_context": "error", "min_tokens": 300}
    )  # leaves nothing, which is said of the first source by name
    with pytest.raises(PlanError, match="no document of source 'a' is left: of 64, 64 have fewer"):
        build(short, tmp_path / "out", QUIET)


def test_a_source_may_have_its_own_policy_and_a_part_of_an_epoch(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        a={"weight": 0.7, "max_epochs": 1.5, "longer_than_context": "drop"},
        b={"weight": 0.3, "max_epochs": 9, "min_tokens": 16},
    )
    root = tmp_path / "out"
    build(config, root, QUIET)
    verify(root)
    first, second = load_manifest(root).segments[0].sources
    assert (first.max_epochs, first.passes) == (1.5, 2)
    assert 912 + 456 - 32 < first.tokens <= 912 + 456
    assert first.unselected_tokens == 2 * 912 - first.tokens
    assert (first.too_long_documents, first.too_short_documents) == (4, 0)
    assert (second.too_long_documents, second.too_short_documents) == (0, 1)

    figures = report(root)
    mixture = {source["name"]: source for source in figures["sources"]}
    assert mixture["a"]["asked_share"] == pytest.approx(0.7)
    assert mixture["a"]["share"] == pytest.approx(0.7, abs=0.02)
    assert mixture["a"]["epochs"] == first.tokens / 912
    assert mixture["b"]["epochs"] == second.tokens / 410
    for source in mixture.values():
        assert 0 < source["behind_tokens"] <= CONTEXT  # two sources: one piece
        assert 0 < source["ahead_tokens"] <= CONTEXT
    steps = pq.read_table(root / "steps.parquet").to_pylist()
    shares = [step["source_tokens"][0] / step["tokens"] for step in steps]
    assert mixture["a"]["share_cv"] == pytest.approx(np.std(shares) / np.mean(shares))


@pytest.mark.parametrize(
    ("policy", "at_source_end"), [("concat", "stop"), ("concat", "drop"), ("wlb", "drop")]
)
def test_a_source_of_one_document_keeps_its_thousandth(
    policy: str, at_source_end: str, tmp_path: Path
) -> None:
    config = config_of(
        tmp_path,
        LENGTHS | ONE,
        a={"weight": 0.899, "max_epochs": 11.25},
        b={"weight": 0.1, "max_epochs": 2},
        one={"weight": 0.001, "max_epochs": 2000},
        mixture={"at_source_end": at_source_end, "target_tokens": 16_000},
        packing={
            "num_micro_batches": 2, "context_length": CONTEXT, "max_tokens": 48, "policy": policy,
        },
    )  # fmt: skip
    build(config, tmp_path / "out", QUIET)
    verify(tmp_path / "out")
    manifest = load_manifest(tmp_path / "out")
    [first, second, one] = manifest.segments[0].sources
    if at_source_end == "stop":  # b has 826 tokens in two passes: the tenth of 8,260
        assert second.tokens == 826
        assert 8_260 - 320 <= manifest.segments[0].stream_tokens <= 8_260 + 480
        assert abs(one.tokens - manifest.segments[0].stream_tokens / 1000) < CONTEXT
    else:
        assert first.passes == 12
        assert second.unselected_tokens == 0
        assert manifest.segments[0].stream_tokens > 15_900


@pytest.mark.parametrize(
    "change",
    [
        {"documents": {"min_tokens": 2}},
        {"documents": {"longer_than_context": "drop"}},
        {"a": {"min_tokens": 2}},
        {"a": {"longer_than_context": "error"}},
        {"a": {"max_epochs": 1.25}},
        {"a": {"weight": 1.0}, "b": {"weight": 2.0}},
    ],
)
def test_every_setting_of_the_mixture_makes_another_plan(
    change: dict[str, Any], tmp_path: Path
) -> None:
    stores = ["0", "1"]
    assert plan_key(stores, config_of(tmp_path)) != plan_key(stores, config_of(tmp_path, **change))


def test_saying_what_holds_anyway_makes_no_other_plan(tmp_path: Path) -> None:
    said = config_of(tmp_path, a={"min_tokens": 1, "longer_than_context": "cut", "max_epochs": 1.0})
    assert plan_key(["0"], said) == plan_key(["0"], config_of(tmp_path))
