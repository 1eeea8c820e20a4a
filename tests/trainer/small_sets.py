"""A set of real shards that a model of a few thousand weights trains on in no time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from jobs.build import build
from jobs.replan import replan
from pipeline.config_file import parse_config
from pipeline.shard.reader import open_shards
from tests.corpora import EOS, some_texts, tiny_tokenizer, write_jsonl
from tests.jobs.small_run import QUIET
from tests.reference_llama import Sizes, piece_loss
from trainer import checkpoint_digests
from trainer.weights import initial_weight

SIZES = Sizes(hidden=16, heads=4, kv_heads=2, intermediate=24, layers=4, vocabulary=320)
SEED, STD = 3, 0.3
"""Large weights, so that attention is far from even."""
NUM_MICRO_BATCHES = 4


def write_model(directory: Path, **changes: Any) -> Path:
    """The `config.json` of `SIZES`."""
    config = {
        "model_type": "llama",
        "hidden_size": SIZES.hidden,
        "intermediate_size": SIZES.intermediate,
        "num_hidden_layers": SIZES.layers,
        "num_attention_heads": SIZES.heads,
        "num_key_value_heads": SIZES.kv_heads,
        "vocab_size": SIZES.vocabulary,
        "rms_norm_eps": SIZES.eps,
        "rope_theta": SIZES.theta,
        "initializer_range": STD,
        "tie_word_embeddings": False,
        **changes,
    }
    path = directory / "config.json"
    path.write_text(json.dumps(config))
    return path


def build_set(directory: Path, seed: int = 0, num_micro_batches: int = NUM_MICRO_BATCHES) -> Path:
    """Pieces of 2 to 96 tokens, some six steps, a plan for cp 2."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = write_jsonl(
        directory / "lines.jsonl", some_texts(15 * num_micro_batches, seed=4, longest=160)
    )
    config = parse_config(
        {
            "tokenizer": {"path": str(tiny_tokenizer()), "eos_token": EOS},
            "sources": [{"name": "lines", "paths": [str(lines)]}],
            "mixture": {"seed": seed},
            "packing": {
                "policy": "reorder",
                "num_micro_batches": num_micro_batches,
                "context_length": 96,
                "max_tokens": 192,  # room for the pads of padded_head_tail
            },
            "workload": {"crossover": 60},
            "context_parallel": {"sizes": [2], "strategy": "per_document"},
            "parallel": {"dp_size": 2, "pp_size": 2},
            "job": {"executor": "local"},
        },
        name="small set",
    )
    root = directory / "set"
    assert build(config, root, QUIET).finished
    return root


def build_without_targets(directory: Path) -> Path:
    """Documents of one token, which is no other's label."""
    rows = pa.array([[token] for token in range(100)], pa.list_(pa.int32()))
    pq.write_table(pa.table({"ids": rows}), directory / "ids.parquet")
    paths = [str(directory / "ids.parquet")]
    config = parse_config(
        {
            "tokenizer": {"vocab_size": SIZES.vocabulary},
            "sources": [{"name": "ids", "paths": paths, "token_column": "ids"}],
            "packing": {"policy": "concat", "num_micro_batches": 4, "context_length": 16},
            "workload": {"crossover": 60},
            "job": {"executor": "local"},
        },
        name="set without targets",
    )
    assert build(config, directory / "set", QUIET).finished
    return directory / "set"


def replanned(root: Path, strategy: str, other: Path | None = None) -> Path:
    """The same set, beside it or elsewhere, with another strategy's plan for cp 2."""
    other = other or root.with_name(f"set-{strategy}")
    shutil.copytree(root, other)
    replan(other, (2,), strategy, QUIET)
    return other


def settings(model: Path, **tables: dict[str, Any]) -> dict[str, Any]:
    """Of a run in float64; tables add to these."""
    whole: dict[str, Any] = {
        "model": {"config": str(model), "seed": SEED},
        "optimizer": {"lr": 0.01, "min_lr": 0.001, "warmup_steps": 2, "max_grad_norm": 0.0},
        "run": {"precision": "float64", "device": "cpu", "loss_rows": 37},
    }
    for name, table in tables.items():
        whole[name] = {**whole.get(name, {}), **table}
    return whole


def sign(checkpoint: Path) -> None:
    """Give a checkpoint's files, as they are, digests anew."""
    files = [path for path in checkpoint.iterdir() if path.name != checkpoint_digests.FILE]
    digests = {path.name: checkpoint_digests.digest_of(path) for path in files}
    checkpoint_digests.write_digests(checkpoint, digests)


def first_weights() -> dict[str, torch.Tensor]:
    """The whole model as every mesh begins it, in float64."""
    return {
        name: initial_weight(name, torch.Size(size), seed=SEED, std=STD, layers=SIZES.layers)
        .double()
        .requires_grad_()
        for name, size in SIZES.parameters().items()
    }


def reference_step(root: Path, step: int, weights: dict[str, torch.Tensor]) -> float:
    """The step's loss, each piece computed alone; gradients are left in the weights' `grad`."""
    reader, total = open_shards(root), 0.0
    targets = reader.global_targets(step)
    for weight in weights.values():
        weight.grad = None
    for slot in range(reader.manifest.segment_of(step).num_micro_batches):
        micro_batch = reader.micro_batch(step, slot)
        for first, stop in zip(micro_batch.cu_seqlens, micro_batch.cu_seqlens[1:], strict=False):
            tokens, labels = micro_batch.tokens[first:stop], micro_batch.labels[first:stop]
            loss = piece_loss(weights, SIZES, tokens, labels) / targets
            if loss.requires_grad:  # a piece of one token may have no label
                loss.backward()
            total += loss.item()
    return total
