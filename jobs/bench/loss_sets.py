"""The sets of `jobs.bench.loss_curves`: one stream under each policy, and documents no run reads.

All sets of a seed are of the same stream, so policies differ in what stands in which step, and at
the end in the few pieces that one of them runs before the last step and another after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.build import build
from jobs.progress import Reporter
from pipeline.config_file import load_config
from pipeline.shard import schema
from pipeline.shard.manifest import load_manifest
from pipeline.shard.reader import open_shards

POLICIES = ("concat", "reorder", "wlb", "lookahead")
HELD_OUT_SEED = 1_000_003
"""Of the stream that held-out documents come from, in the order of its pieces."""
_DOCUMENTS = 1 << 40
"""More than a source has documents: source times this plus doc_id names a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is trained, and on what steps."""

    policies: tuple[str, ...] = POLICIES
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each is the seed of the stream's order and of the first weights."""
    steps: int = 200
    num_micro_batches: int = 8
    context_length: int = 1024
    max_tokens: int = 1280
    held_out_tokens: int = 16_384
    evaluate_every: int = 20
    """Steps; training losses are means over as many."""
    spare_steps: int = 30
    """Planned beyond those that are trained, so that none of these is short of pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sets:
    """Where sets are built, and of what.

    Args:
        config: a configuration whose stores and sources are used.
        store: of the token stores; they are made where they are missing.
        folder: for a set a policy and seed.
    """

    config: Path
    store: Path
    folder: Path

    def build(self, extent: Extent, policy: str, seed: int, steps: int) -> Path:
        """A set of at least `steps` steps of the stream of that seed.

        A step is as many micro-batches as there are data-parallel ranks: the heaviest is what
        policies make lighter, whether by order or by moving pieces to other steps.
        """
        tokens = extent.num_micro_batches * extent.context_length * (steps + extent.spare_steps)
        root = self.folder / f"{policy}-{seed}"
        settings = {
            "mixture.seed": seed,
            "mixture.target_tokens": tokens,
            "packing.policy": policy,
            "packing.num_micro_batches": extent.num_micro_batches,
            "packing.context_length": extent.context_length,
            "packing.max_tokens": extent.max_tokens,
            "parallel.dp_size": extent.num_micro_batches,
            "parallel.pp_size": 1,
            "context_parallel.sizes": [],
            "shards.store": str(self.store),
            "job.executor": "local",
        }
        overrides = tuple(f"{name}={value}" for name, value in settings.items())
        build(load_config(self.config, overrides), root, Reporter(quiet=True))
        return root


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a run of a set reads."""

    documents: np.ndarray
    """int64, (documents,), ascending: the name of each."""
    covered: np.ndarray
    """bool, (tokens of the stream,)."""


def read_by(root: Path, steps: int) -> Read:
    """What the first steps of a set hold, from its plan."""
    manifest = load_manifest(root)
    edges = np.zeros(manifest.segments[0].stream_tokens + 1, np.int64)
    documents: list[np.ndarray] = []
    columns = ["step", "source", "doc_id", "position", "cu_seqlens"]
    for part in range(manifest.num_parts):
        table = pq.read_table(
            manifest.plan_path(part), columns=columns, filters=pc.field("step") < steps
        )
        source, doc_id, position = (_values(table, name) for name in columns[1:4])
        lengths = np.diff(_values(table, "cu_seqlens"))
        lengths = lengths[lengths > 0]  # a row's first border comes after another's last
        documents.append(_names(source, doc_id))
        np.add.at(edges, position, 1)
        np.add.at(edges, position + lengths, -1)
    return Read(
        documents=np.unique(np.concatenate(documents)), covered=np.cumsum(edges[:-1]).astype(bool)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Pieces back to back; ids and labels int64, (tokens,)."""

    tokens: np.ndarray
    labels: np.ndarray
    lengths: np.ndarray
    """int64, (pieces,)."""


def held_out(root: Path, read: np.ndarray, tokens: int) -> list[Packed]:
    """The first pieces of a set whose documents no run reads, a `Packed` a micro-batch.

    Args:
        root: of the set.
        read: int64, (documents,), ascending: documents that some run reads.
        tokens: how many are wanted.

    Raises:
        ValueError: the set has fewer of them.
    """
    reader, found, total = open_shards(root), [], 0
    for step in range(reader.num_steps):
        for slot in range(reader.manifest.segments[0].num_micro_batches):
            micro_batch = reader.micro_batch(step, slot)
            lengths = np.diff(micro_batch.cu_seqlens).astype(np.int64)
            new = ~np.isin(_names(micro_batch.source, micro_batch.doc_id), read)
            if not new.any():
                continue
            kept = np.repeat(new, lengths)
            ids = micro_batch.tokens.astype(np.int64)
            found.append(
                Packed(tokens=ids[kept], labels=micro_batch.labels[kept], lengths=lengths[new])
            )
            total += int(lengths[new].sum())
            if total >= tokens:
                return found
    raise ValueError(
        f"{root} has {total} tokens of documents that no run reads, {tokens} are wanted; train "
        "fewer steps, or give more documents"
    )


def frequent_ids(root: Path, vocab_size: int) -> np.ndarray:
    """A small vocabulary: the most frequent ids of a set, and one id for all others.

    Args:
        root: of the set.
        vocab_size: of the small vocabulary; its last id stands for all that are not frequent.

    Returns:
        int64, (vocabulary,): the small id of each id.
    """
    manifest = load_manifest(root)
    counts = np.zeros(int(manifest.tokenizer["vocab_size"]), np.int64)
    for part in range(manifest.num_parts):
        table = pq.read_table(manifest.shard_path(part), columns=[schema.TOKENS])
        counts += np.bincount(_values(table, schema.TOKENS), minlength=len(counts))
    by_count = np.argsort(-counts, kind="stable")[: vocab_size - 1]
    small = np.full(len(counts), vocab_size - 1, np.int64)
    small[by_count] = np.arange(len(by_count))
    return small


def _names(source: np.ndarray, doc_id: np.ndarray) -> np.ndarray:
    return source.astype(np.int64) * _DOCUMENTS + doc_id


def _values(table: pa.Table, name: str) -> np.ndarray:
    """The values of a column of lists, one after the other."""
    chunks = [chunk.flatten().to_numpy() for chunk in table[name].chunks]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.int64)
