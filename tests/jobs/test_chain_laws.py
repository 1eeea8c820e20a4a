"""Random chains and forks hold every law and equal their slow twins; verify finds broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from jobs import extend as extend_module
from jobs.build import build
from jobs.extend import extend
from jobs.fork import fork
from packer.passes import EarlierEpoch, Remains
from pipeline.built import stores_of
from pipeline.config import RunConfig
from pipeline.inspect import inspect_document
from pipeline.planning.mixing import PlanError, replay
from pipeline.planning.pool import pool_before
from pipeline.shard.digests import sha256_file
from pipeline.shard.manifest import load_manifest
from pipeline.verify import VerifyError, verify
from tests.jobs.small_chains import as_slow, slow_pool, slow_stream, stream_of, tiny_config
from tests.jobs.small_run import QUIET, digests

# --- pictures ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpora")


def config_of(corpora: Path, context_length: int, num: int = 2, **more: Any) -> RunConfig:
    packing = {"policy": "reorder", "num_micro_batches": num, "context_length": context_length}
    tables = {"sources": {"long": {}}, "packing": packing} | more
    return tiny_config(corpora, **tables)


@pytest.fixture(scope="module")
def begun(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of one micro-batch, S = 50, that stopped in the middle of three documents."""
    root = tmp_path_factory.mktemp("begun") / "set"
    build(config_of(corpora, 50, 1, mixture={"target_tokens": 250, "seed": 2}), root, QUIET)
    return root


def copy_of(begun: Path, root: Path) -> Path:
    fork(begun, load_manifest(begun).num_steps, root, QUIET)
    return root


def test_a_book_that_was_begun_goes_on_where_it_stopped(
    begun: Path, corpora: Path, tmp_path: Path
) -> None:
    root = copy_of(begun, tmp_path / "set")
    [epoch] = slow_pool(load_manifest(root), 1, stores_of(load_manifest(root)))[0]
    assert epoch.left == [(1, 50, 90), (5, 50, 150), (8, 50, 64)]
    extend(config_of(corpora, 40, 1), root, QUIET)
    verify(root)
    assert pieces_of(root, 1) == [(50, 90)]
    assert pieces_of(root, 5) == [(50, 90), (90, 130), (130, 150)]
    assert pieces_of(root, 8) == [(50, 64)]
    assert pieces_of(root, 13) == [(0, 40), (40, 80), (80, 120)]  # nothing of it had run


def pieces_of(root: Path, doc_id: int) -> list[tuple[int, int]]:
    """Pieces of a long document in the second segment, placed or in the tail."""
    shown = inspect_document(root, source="long", doc_id=doc_id, pieces=True)["pieces"]
    return [(piece["doc_start"], piece["doc_stop"]) for piece in shown if piece["segment"] == 1]


# --- properties ----------------------------------------------------------------------------------


@st.composite
def segments(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """Tables of a segment's configuration."""
    context_length = draw(st.sampled_from([16, 24, 40, 64]))
    policy = draw(st.sampled_from(["reorder", "concat", "wlb", "fixed_greedy"]))
    packing: dict[str, Any] = {
        "policy": policy,
        "num_micro_batches": draw(st.sampled_from([1, 2, 3])),
        "context_length": context_length,
        "max_tokens": draw(st.sampled_from([context_length, context_length * 3 // 2])),
        "max_displacement": draw(st.sampled_from([4, 16])),
    }
    if policy == "wlb":
        packing["thresholds"] = [context_length * 3 // 4]
    names = ["long", "short", "late"] if number else ["long", "short"]
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    weighted = draw(st.booleans())
    sources = {
        name: {
            "max_epochs": draw(st.sampled_from([1, 1, 1.5, 2, 3])) + number * draw(st.booleans()),
            "min_tokens": draw(st.sampled_from([1, 1, 4])),
            "longer_than_context": draw(st.sampled_from(["cut", "cut", "truncate", "drop"])),
            **({"weight": draw(st.sampled_from([1.0, 2.5]))} if weighted else {}),
        }
        for name in chosen
    }
    mixture = {
        "seed": draw(st.integers(0, 3)),
        "target_tokens": draw(st.sampled_from([None, 150, 300, 500])),
        "at_source_end": draw(st.sampled_from(["stop", "drop"])),
    }
    return {"packing": packing, "sources": sources, "mixture": mixture}


def check(root: Path, scratch: Path) -> None:
    """Every law, and pool and stream of the last segment beside their slow twins."""
    verify(root)
    manifest = load_manifest(root)
    stores, last = stores_of(manifest), len(manifest.segments) - 1
    pool, expected = pool_before(manifest, last, stores, scratch), slow_pool(manifest, last, stores)
    assert {
        source: [as_slow(epoch, stores[source].documents) for epoch in epochs]
        for source, epochs in pool.items()
    } == expected
    segment = manifest.segments[last]
    stream = replay(segment, stores, pool, target_tokens=segment.target_tokens)
    assert stream_of(manifest, last) == slow_stream(segment, stream, stores, expected)
    event("documents go on", str(any(e.left for epochs in expected.values() for e in epochs)))


@given(data=st.data())
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_random_chains_hold_every_law_and_equal_their_slow_twins(
    corpora: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    base = tmp_path_factory.mktemp("random")
    root = base / "0"
    for number in range(4):
        config = tiny_config(corpora, **data.draw(segments(number)))
        before = digests(root)
        try:
            if number:
                extend(config, root, QUIET)
            else:
                build(config, root, QUIET)
        except (PlanError, ValueError) as error:
            event("refused", str(error)[:20])
            assert digests(root) == before
            if not number:
                return
            continue
        check(root, base / f"pool-{number}")
        if data.draw(st.booleans()):
            step = data.draw(st.integers(1, load_manifest(root).num_steps))
            fork(root, step, base / f"{number + 1}", QUIET)
            root = base / f"{number + 1}"
            assert load_manifest(root).num_steps == step
            check(root, base / f"pool-of-fork-{number}")


# --- verify --------------------------------------------------------------------------------------

Pool = dict[int, tuple[EarlierEpoch, ...]]
NOTHING = np.empty(0, np.int64)


def forget_all(pool: Pool) -> Pool:
    """As if nothing had run."""
    return {}


def forget_begun(pool: Pool) -> Pool:
    """As if of documents that are left in part nothing had run."""
    [epoch] = pool[0]
    begun = epoch.begun.copy()
    for doc_id in epoch.doc_id.tolist():
        begun[doc_id // 8] &= ~np.uint8(1 << doc_id % 8)
    return {0: (replace(epoch, begun=begun, doc_id=NOTHING, start=NOTHING, stop=NOTHING),)}


def forget_remains(pool: Pool) -> Pool:
    """As if documents that were begun had run whole."""
    [epoch] = pool[0]
    return {0: (replace(epoch, doc_id=NOTHING, start=NOTHING, stop=NOTHING),)}


def shift_remains(pool: Pool) -> Pool:
    """The first token of every rest is lost."""
    [epoch] = pool[0]
    long = epoch.stop - epoch.start > 1
    return {0: (replace(epoch, doc_id=epoch.doc_id[long], start=epoch.start[long] + 1,
                        stop=epoch.stop[long]),)}  # fmt: skip


LIES: dict[str, tuple[Callable[[Pool], Pool], str]] = {
    "a piece runs in one segment alone": (forget_all, "which an earlier segment ran"),
    "a begun document is not taken whole again": (forget_begun, "which an earlier segment ran"),
    "what is left is taken before a later epoch begins": (
        forget_remains, "though a later epoch began"),
    "what is left is cut from where it begins": (shift_remains, "one of the parts of 40 tokens"),
}  # fmt: skip


@pytest.mark.parametrize("law", LIES)
def test_a_segment_planned_over_a_wrong_pool_is_found(
    law: str, begun: Path, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie, message = LIES[law]
    root = copy_of(begun, tmp_path / "set")
    monkeypatch.setattr(extend_module, "pool_before", lambda *given: lie(pool_before(*given)))
    sources = {"long": {"max_epochs": 2}}
    extend(config_of(corpora, 40, 1, sources=sources), root, QUIET)
    with pytest.raises(VerifyError, match=message):
        verify(root)


def test_remains_cut_where_the_document_s_own_parts_are_would_be_found(
    begun: Path, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy_of(begun, tmp_path / "set")

    def cut(earlier: EarlierEpoch, *, context_length: int) -> Remains:
        rows = [
            (doc_id, max(a, start), min(a + context_length, stop))
            for doc_id, start, stop in zip(
                earlier.doc_id.tolist(), earlier.start.tolist(), earlier.stop.tolist(), strict=True
            )
            for a in range(start // context_length * context_length, stop, context_length)
        ]
        doc_id, start, stop = np.array(rows, np.int64).T.copy()
        return Remains(begun=earlier.begun, doc_id=doc_id, start=start, stop=stop)

    monkeypatch.setattr(Remains, "of", staticmethod(cut))
    extend(config_of(corpora, 40, 1), root, QUIET)
    with pytest.raises(VerifyError, match="one of the parts of 40 tokens"):
        verify(root)


def sign(root: Path, document: dict[str, Any]) -> None:
    """Put another manifest in the place of a set's, with its digest."""
    (root / "manifest.json").write_text(json.dumps(document))
    (root / "manifest.sha256").write_text(sha256_file(root / "manifest.json") + "\n")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stream_tokens": 1}, "position is not within the stream's"),
        ({"target_tokens": None}, r"target_tokens None must be its stream_tokens"),
        ({"cut": 1}, "cut is 1, must be true or false"),
    ],
)
def test_a_cut_segment_that_is_not_what_it_says_is_found(
    fields: dict[str, Any], message: str, begun: Path, tmp_path: Path
) -> None:
    root = tmp_path / "set"
    fork(begun, 3, root, QUIET)
    verify(root)
    document = json.loads((root / "manifest.json").read_bytes())
    document["segments"][0].update(fields)
    sign(root, document)
    with pytest.raises(VerifyError, match=message):
        verify(root)


@pytest.mark.parametrize("name", ["passes", "unselected_tokens", "unselected_pieces", "tokens"])
def test_counts_of_a_later_segment_are_computed_again(
    name: str, begun: Path, corpora: Path, tmp_path: Path
) -> None:
    root = copy_of(begun, tmp_path / "set")
    extend(config_of(corpora, 40, 1, mixture={"target_tokens": 200}), root, QUIET)
    verify(root)
    document = json.loads((root / "manifest.json").read_bytes())
    document["segments"][1]["sources"][0][name] += 1
    sign(root, document)
    with pytest.raises(VerifyError, match=rf"segments.1.sources.0.{name} is"):
        verify(root)
