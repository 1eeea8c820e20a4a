"""The losses of docs/TRAINING.md: what runs are compared on, and what is kept of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.bench import curves, loss_curves, tables
from jobs.bench.curves_series import PICTURES
from jobs.bench.loss_sets import Extent, held_out, read_by
from jobs.bench.loss_tables import differences, loss_table, spread
from jobs.bench.machine import RESULTS
from pipeline.shard.reader import open_shards
from tests.corpora import EOS, some_texts, tiny_tokenizer, write_jsonl

CONFIG = """
[tokenizer]
path = "{tokenizer}"
eos_token = "{eos}"

[[sources]]
name = "lines"
paths = ["{lines}"]

[packing]
context_length = 96

[workload]
crossover = 60
"""


def row(policy: str, seed: int, final: float, **fields: Any) -> dict[str, Any]:
    return {
        "policy": policy,
        "seed": seed,
        "excess": 0.25,
        "displacement_mean": 0.5,
        "same_tokens": 1.0,
        "loss": [9.0] * 5 + [2.0] * 20,
        "held_out": [[0, 9.0], [25, final]],
        **fields,
    }


def test_a_policy_is_compared_with_concat_of_the_same_seed_in_units_of_the_spread() -> None:
    rows = [row("wlb", seed, 3.0 + seed + 0.5 * seed) for seed in (2, 0, 1)]
    rows += [row("concat", seed, 3.0 + seed, same_tokens=0.5) for seed in (0, 1, 2)]
    assert spread(rows) == pytest.approx(((1.0 + 1.5**2) / 2) ** 0.5)
    assert differences(rows, "wlb") == [0.0, 0.5, 1.0]
    assert loss_table(rows)[2:] == [
        "| `wlb` | 0.250 | 0.50 | 100.00% | 2.0000 | 4.5000 | 1.5000 "
        "| +0.0000 / +0.5000 / +1.0000 | +0.39 |",
        "| `concat` | 0.250 | 0.50 | 50.00% | 2.0000 | 4.0000 | 1.0000 | | |",
    ]


def test_lines_are_means_of_steps_and_less_concat_seed_by_seed() -> None:
    pytest.importorskip("matplotlib")
    from jobs.bench.loss_pictures import beside_reference, held_out_lines, training_lines

    rows = [row("concat", 0, 3.0, loss=[1.0, 3.0, 5.0, 7.0, 8.0]), row("concat", 1, 5.0)]
    rows[1]["loss"] = [0.0, 0.0, 2.0, 4.0, 9.0]
    steps, means = training_lines(rows, 2)["concat"]
    assert steps.tolist() == [2, 4]  # the fifth step fills no mean
    assert means.tolist() == [[2.0, 6.0], [0.0, 3.0]]
    rows += [row("wlb", 0, 3.5), row("wlb", 1, 4.5)]
    beside = beside_reference(held_out_lines(rows))
    assert beside["wlb"][1].tolist() == [[0.0, 0.5], [0.0, -0.5]]
    assert beside["concat"][1].tolist() == [[0.0, -1.0], [0.0, 1.0]]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results, picture and sets of a tiny form of it."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("loss")
    lines = write_jsonl(folder / "lines.jsonl", some_texts(150, seed=4, longest=160))
    config = folder / "config.toml"
    config.write_text(CONFIG.format(tokenizer=tiny_tokenizer(), eos=EOS, lines=lines))
    loss_curves.main(
        [
            *("--quick", "--processes", "1", "--config", str(config), "--out", str(folder)),
            *("--store", str(folder / "store"), "--sets", str(folder / "sets")),
        ]
    )
    return folder


def test_the_command_trains_keeps_and_draws(kept: Path) -> None:
    from jobs.bench.loss_pictures import FILE, digest

    rows = json.loads((kept / "loss.json").read_text())["rows"]
    quick = loss_curves.QUICK
    assert [(row["policy"], row["seed"]) for row in rows] == [
        (policy, seed) for policy in quick.policies for seed in quick.seeds
    ]
    for row in rows:
        assert len(row["loss"]) == quick.steps
        assert [step for step, _ in row["held_out"]] == [0, 2, 3]
        assert row["held_out"][-1][1] < row["held_out"][0][1]
        assert row["held_out_tokens"] >= quick.held_out_tokens
        assert 0.5 < row["same_tokens"] <= 1
    firsts = {row["seed"]: row["held_out"][0][1] for row in rows}
    assert all(row["held_out"][0][1] == firsts[row["seed"]] for row in rows)
    assert firsts[0] != firsts[1]
    text = (kept / "pictures" / FILE).read_text()
    assert digest(rows) in text
    loss_curves.main(["--draw", "--out", str(kept)])
    assert (kept / "pictures" / FILE).read_text() == text


def test_held_out_pieces_are_whole_and_of_documents_that_no_run_reads(kept: Path) -> None:
    steps, roots = loss_curves.QUICK.steps, sorted((kept / "sets").glob("*-[01]"))
    assert len(roots) == 4
    read: set[int] = set()
    for root in roots:
        found: set[int] = set()
        covered = 0
        reader = open_shards(root)
        for step in range(steps):
            for slot in range(loss_curves.QUICK.num_micro_batches):
                micro_batch = reader.micro_batch(step, slot)
                found |= set(micro_batch.doc_id.tolist())  # of one source, number 0
                covered += len(micro_batch.tokens)
        whole = read_by(root, steps)
        assert set(whole.documents.tolist()) == found
        assert whole.covered.sum() == covered
        read |= found
    (others,) = (root for root in (kept / "sets").iterdir() if root not in roots)
    names = np.array(sorted(read))
    pieces = held_out(others, names, loss_curves.QUICK.held_out_tokens)
    reader, unread = open_shards(others), set()
    for step in range(reader.num_steps):
        for slot in range(loss_curves.QUICK.num_micro_batches):
            micro_batch = reader.micro_batch(step, slot)
            borders = micro_batch.cu_seqlens
            for number, document in enumerate(micro_batch.doc_id.tolist()):
                if document not in read:
                    part = slice(borders[number], borders[number + 1])
                    unread.add((*micro_batch.tokens[part].tolist(), *micro_batch.labels[part]))
    assert read
    for packed in pieces:
        stops = np.cumsum(packed.lengths)
        for start, stop in zip(stops - packed.lengths, stops, strict=True):
            assert (*packed.tokens[start:stop], *packed.labels[start:stop]) in unread
    with pytest.raises(ValueError, match=r"tokens of documents that no run reads, 9+ are wanted"):
        held_out(others, names, 999_999)


def test_a_quick_look_does_not_replace_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        loss_curves.main(["--quick"])
    assert "--out" in capsys.readouterr().err


def test_the_page_shows_the_picture_of_the_rows_that_were_kept() -> None:
    pytest.importorskip("matplotlib")
    from jobs.bench.loss_pictures import FILE, digest

    page = (tables.ROOT / "docs" / "TRAINING.md").read_text(encoding="utf-8")
    assert re.findall(r"!\[[^\]]+\]\((pictures/[^)]+)\)", page) == [f"pictures/{FILE}"]
    kept = json.loads((RESULTS / "loss.json").read_text())
    text = (curves.PICTURES / FILE).read_text(encoding="utf-8")
    assert digest(kept["rows"]) in text, "run python -m jobs.bench.loss_curves --draw"
    assert len(kept["rows"]) == len(Extent().policies) * len(Extent().seeds)
    drawn = {FILE, *(picture.file for picture in PICTURES)}
    assert {path.name for path in curves.PICTURES.iterdir()} == drawn
