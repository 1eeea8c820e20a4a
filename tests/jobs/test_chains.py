"""A set grows by segments: what ran stays, what did not is taken once, and a killed job goes on."""

from __future__ import annotations

import itertools
import shutil
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jobs import extend as extend_module
from jobs import stages
from jobs.build import OtherConfiguration, build
from jobs.executor import LocalExecutor
from jobs.extend import extend
from jobs.replan import replan
from jobs.workplace import Workplace
from pipeline.config import ConfigError, JobSettings, RunConfig
from pipeline.inspect import inspect_document
from pipeline.planning.plan import PlanError
from pipeline.report import report
from pipeline.shard.manifest import load_manifest
from pipeline.shard.reader import open_plan, open_shards
from pipeline.shard.tables import NotInSet
from pipeline.verify import verify
from tests.jobs.chain_sets import BEFORE, TABLES, changed, rows_of, what_runs
from tests.jobs.small_run import QUIET, DyingExecutor, digests


def test_an_extended_set_holds_every_law_and_what_there_was(before: Path, chain: Path) -> None:
    verify(chain)
    had, has = digests(before), digests(chain)
    assert {name for name in had if had[name] != has[name]} == TABLES
    manifest = load_manifest(chain)
    assert [source.name for source in manifest.sources] == ["lines", "mixed", "late"]
    one, two = manifest.segments
    assert (one.first_step, one.stop_step, two.first_step) == (0, BEFORE, BEFORE)
    assert (two.num_micro_batches, two.context_length, two.policy) == (6, 200, "concat")
    assert [entry.source for entry in two.sources] == [2, 0]
    assert one == load_manifest(before).segments[0]


def test_no_token_of_an_epoch_runs_twice_and_begun_documents_go_on(chain: Path) -> None:
    begun = 0
    manifest = load_manifest(chain)
    for (source, *_), pieces in rows_of(manifest).items():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(pieces))
        begun += len({segment for *_, segment in pieces}) > 1
        if source == 2:
            assert {segment for *_, segment in pieces} == {1}
    assert begun > 2


@pytest.mark.parametrize("open_set", [open_shards, open_plan])
def test_both_readers_see_the_old_steps_as_they_were(
    before: Path, chain: Path, open_set: Any
) -> None:
    steps = range(0, BEFORE, 6)
    assert what_runs(chain, steps, open_set) == what_runs(before, steps, open_set)
    new = range(BEFORE, load_manifest(chain).num_steps, 5)
    assert what_runs(chain, new, open_shards) == what_runs(chain, new, open_plan)


def test_ranks_read_across_the_border_where_they_share_every_step(chain: Path) -> None:
    reader = open_shards(chain)
    steps = [batch.step for batch in reader.batches(BEFORE - 1, dp_rank=1, dp_size=2, cp_size=2)]
    assert steps[:5] == [BEFORE - 1] * 2 + [BEFORE] * 3
    with pytest.raises(NotInSet, match="dp_size 4 does not divide the 6 micro-batches"):
        reader.batches(0, dp_rank=0, dp_size=4)


def test_totals_and_tables_are_the_whole_chain_s(before: Path, chain: Path) -> None:
    figures = report(chain)
    one, two = figures["segments"]
    assert figures["steps"] == one["steps"] + two["steps"] == load_manifest(chain).num_steps
    assert figures["placed_tokens"] == one["placed_tokens"] + two["placed_tokens"]
    assert [source["name"] for source in two["sources"]] == ["late", "lines"]
    assert one == report(before)["segments"][0]
    ran = one["sources"][0]["epochs"]
    assert two["sources"][1]["epochs"] > ran
    assert min(one["imbalance_degree"], two["imbalance_degree"]) <= figures["imbalance_degree"]
    assert figures["imbalance_degree"] <= max(one["imbalance_degree"], two["imbalance_degree"])
    key, pieces = next(
        item for item in rows_of(load_manifest(chain)).items() if len({p[2] for p in item[1]}) > 1
    )
    shown = inspect_document(chain, source="lines", doc_id=key[2], pieces=True)["pieces"]
    placed = [(p["doc_start"], p["doc_stop"], p["segment"]) for p in shown if p["step"] is not None]
    assert placed == pieces


def test_another_cp_degree_is_planned_over_the_whole_chain(chain: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    shutil.copytree(chain, root)
    replan(root, (3,), "per_sequence", QUIET, JobSettings(executor="local"))
    verify(root)
    assert load_manifest(root).cp_sizes == (2, 3, 4)
    extended = digests(root)
    assert {name for name, value in digests(chain).items() if value != extended[name]} <= TABLES


def test_an_extension_killed_anywhere_ends_the_same(
    before: Path, chain: Path, second: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "set"
    shutil.copytree(before, root)
    monkeypatch.setattr(stages, "ALONE_ROWS", 0)

    def extend_with(executor: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(extend_module, "open_executor", lambda _: nullcontext(executor))
            extend(second, root, QUIET)

    for tasks in (0, 5, 9):
        with pytest.raises(KeyboardInterrupt):
            extend_with(DyingExecutor(tasks))
        assert load_manifest(root).num_steps == BEFORE  # still the set that it was
    verify(root)

    def die(_: Path) -> None:
        raise KeyboardInterrupt

    for place in ("publish", "clean_up"):  # before the new manifest is in place, and after
        with monkeypatch.context() as patch:
            if place == "publish":
                patch.setattr("pipeline.publish.recover", die)
            else:
                patch.setattr(Workplace, "clean_up", die)
            with pytest.raises(KeyboardInterrupt):
                extend_with(LocalExecutor())
    extend_with(LocalExecutor())
    found = digests(root)
    assert found == digests(chain)
    with pytest.raises(PlanError, match="nothing of source 'late' is left"):
        extend_with(LocalExecutor())  # one that ended well is not gone on with: it is another


SHARED = {
    "tokenizer": (
        {"tokenizer": {"add_eos": False}}, "the chain's tokenizer is .* differs from it in eos_id"),
    "workload": ({"workload": {"crossover": 201}}, r"leave \[workload\] out"),
    "rows": (
        {"shards": {"row_group_tokens": 100}}, r"2 micro-batches a row group.* set it to 400"),
    "order": ({"parallel": {"micro_batch_order": "light_last_8"}}, "the configuration's 'light_l"),
    "degree": ({"context_parallel": {"sizes": (8,)}}, r"degrees \[2, 4\], .* asks for 8"),
    "strategy": (
        {"context_parallel": {"strategy": "per_sequence"}},
        "degree 2 have strategy 'per_document', the configuration asks for 'per_sequence'"),
}  # fmt: skip


@pytest.mark.parametrize("asked", SHARED)
def test_what_a_chain_shares_cannot_be_asked_for_otherwise(
    asked: str, before: Path, second: RunConfig
) -> None:
    tables, message = SHARED[asked]
    had = digests(before)
    with pytest.raises(ConfigError, match=message):
        extend(changed(second, **tables), before, QUIET)
    assert digests(before) == had


def test_another_corpus_under_an_old_name_is_refused(before: Path, second: RunConfig) -> None:
    new, lines = second.sources
    other = lines.model_copy(update={"paths": new.paths})
    with pytest.raises(ConfigError, match=r"source 'lines' is not what the chain has.*another"):
        extend(second.model_copy(update={"sources": (other,)}), before, QUIET)
    renamed = lines.model_copy(update={"name": "rows"})
    with pytest.raises(ConfigError, match="holds what the chain has as 'lines'; call it so"):
        extend(second.model_copy(update={"sources": (renamed,)}), before, QUIET)


def test_what_has_run_is_not_there_any_more(before: Path, first: RunConfig, tmp_path: Path) -> None:
    root = tmp_path / "set"
    shutil.copytree(before, root)
    rest = changed(first, mixture={"target_tokens": None}, packing={"policy": "reorder"})
    extend(rest, root, QUIET)
    verify(root)
    manifest = load_manifest(root)
    tokens = defaultdict(int)
    for (source, *_), pieces in rows_of(manifest).items():
        tokens[source] += sum(stop - start for start, stop, _ in pieces)
    tail = [row for row in inspect_tail(root) if row["segment"] == 1]
    for row in tail:
        tokens[row["source"]] += row["doc_stop"] - row["doc_start"]
    assert dict(tokens) == {n: source.tokens for n, source in enumerate(manifest.sources)}
    with pytest.raises(PlanError, match="less than one step of"):
        extend(rest, root, QUIET)
    assert build_refuses(first, root)


def inspect_tail(root: Path) -> list[dict[str, int]]:
    return pq.read_table(root / "tail.parquet").to_pylist()


def build_refuses(config: RunConfig, root: Path) -> bool:
    with pytest.raises(OtherConfiguration, match="was extended or forked, of 2 segments"):
        build(config, root, QUIET)
    return True
