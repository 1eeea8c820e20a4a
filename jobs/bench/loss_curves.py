"""`python -m jobs.bench.loss_curves`: do policies train a small model alike? docs/TRAINING.md.

    python -m jobs.bench.loss_curves                     train, keep, draw
    python -m jobs.bench.loss_curves --draw              draw again what is kept
    python -m jobs.bench.loss_curves --quick --out DIR   a tiny form of it, to see that it works

It trains on the demo's token stores (`make demo`, or they are made). Losses do not depend on what
else the machine does, `seconds` do.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from jobs.bench import machine
from jobs.bench.loss_sets import (
    HELD_OUT_SEED,
    Extent,
    Read,
    Sets,
    frequent_ids,
    held_out,
    read_by,
)
from pipeline.shard.manifest import load_manifest
from trainer.errors import require_torch

NAME = "loss"
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
QUICK = Extent(
    policies=("concat", "reorder"),
    seeds=(0, 1),
    steps=3,
    num_micro_batches=2,
    context_length=96,
    max_tokens=120,
    held_out_tokens=64,
    evaluate_every=2,
    spare_steps=2,
)
_HELD_OUT_STEPS = 40
"""Of the set that held-out documents are taken from; most of them some run reads."""
_FIGURES = ("excess", "displacement_mean", "displacement_max", "tokens_per_step_cv")


def main(arguments: Sequence[str]) -> None:
    """Train every policy with every seed, keep the rows, draw the picture."""
    parser = argparse.ArgumentParser(prog="python -m jobs.bench.loss_curves", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="a few small steps; needs --out")
    parser.add_argument("--draw", action="store_true", help="train nothing, draw what is kept")
    parser.add_argument("--out", type=Path, help="write figures and picture below this folder")
    parser.add_argument(
        "--config",
        type=Path,
        default=Path("jobs/configs/train-shards.toml"),
        help="whose sources are trained on",
    )
    parser.add_argument("--store", type=Path, default=Path("out/demo/store"), help="token stores")
    parser.add_argument("--sets", type=Path, default=Path("out/loss-sets"), help="built here")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    options = parser.parse_args(arguments)
    if options.quick and options.out is None:
        parser.error("--quick would overwrite the figures of the docs; give --out")
    results = options.out or machine.RESULTS
    kept = results / f"{NAME}.json"
    if not options.draw:
        require_torch()
        extent = QUICK if options.quick else Extent()
        sets = Sets(config=options.config, store=options.store, folder=options.sets)
        rows = run(extent, sets, options.processes)
        kept = machine.save(NAME, rows, folder=results, note=note(extent), extent=asdict(extent))
        print(f"{len(rows)} runs in {kept}", file=sys.stderr)
    from jobs.bench.loss_pictures import draw  # matplotlib, which only this needs

    document = json.loads(kept.read_text())
    pictures = options.out / "pictures" if options.out else PICTURES
    every = document["extent"]["evaluate_every"]
    print(draw(document["rows"], every, pictures), file=sys.stderr)


def run(extent: Extent, sets: Sets, processes: int) -> list[dict[str, Any]]:
    """A row for each policy and seed: what its set is, and the losses of its run.

    Args:
        extent: what is trained.
        sets: of what, and where.
        processes: 1 for this one, or how many to start.
    """
    from jobs.bench.loss_runs import MODEL

    keys = [(policy, seed) for policy in extent.policies for seed in extent.seeds]
    roots = {key: sets.build(extent, *key, steps=extent.steps) for key in keys}
    reads = {key: read_by(root, extent.steps) for key, root in roots.items()}
    others = sets.build(
        extent, "reorder", HELD_OUT_SEED, steps=min(_HELD_OUT_STEPS, 4 * extent.steps)
    )
    documents = np.unique(np.concatenate([read.documents for read in reads.values()]))
    pieces = held_out(others, documents, extent.held_out_tokens)
    ids = frequent_ids(roots[keys[0]], MODEL.vocab_size)
    tasks = [(key, (roots[key], key[1], extent, ids, pieces)) for key in keys]
    found: dict[tuple[str, int], dict[str, Any]] = {}
    started = time.perf_counter()
    for key, losses in _trained(tasks, processes):
        found[key] = losses
        passed = time.perf_counter() - started
        last = losses["held_out"][-1][1]
        print(
            f"{len(found)} of {len(tasks)} runs, {passed:.0f} s: {key[0]}, seed {key[1]}: {last}",
            file=sys.stderr,
        )
    held_out_tokens = sum(len(packed.tokens) for packed in pieces)
    return [
        {
            "policy": policy,
            "seed": seed,
            **_plan_figures(roots[policy, seed]),
            "same_tokens": _same(reads[policy, seed], reads[extent.policies[0], seed]),
            "held_out_tokens": held_out_tokens,
            **found[policy, seed],
        }
        for policy, seed in keys
    ]


def note(extent: Extent) -> str:
    """What was trained."""
    import torch

    from jobs.bench.loss_runs import MODEL

    shape = MODEL.layer
    return (
        f"torch {torch.__version__}. Steps: {extent.steps} of {extent.num_micro_batches} "
        f"micro-batches of {extent.context_length:,} tokens. Model: {MODEL.num_layers} layers, "
        f"hidden {shape.hidden}, vocabulary {MODEL.vocab_size:,}; float32."
    )


def _plan_figures(root: Path) -> dict[str, Any]:
    balance = load_manifest(root).balance
    return {name: balance[name] for name in _FIGURES}


def _same(mine: Read, other: Read) -> float:
    """The share of the other's tokens that this one reads too."""
    return round(float((mine.covered & other.covered).sum() / other.covered.sum()), 5)


def _trained(tasks: Sequence[Any], processes: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    if processes == 1:
        yield from map(_train, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_train, tasks)


def _train(task: Any) -> tuple[Any, dict[str, Any]]:
    from jobs.bench.loss_runs import train

    key, what = task
    return key, train(what)


if __name__ == "__main__":
    main(sys.argv[1:])
