"""The first version's set stays readable, byte for byte and token for token, for ever."""

from __future__ import annotations

import hashlib

import pytest

from pipeline.shard.reader import Reader, open_plan, open_shards
from pipeline.verify import verify
from tests.golden.make import GOLDEN

MANIFEST = "59549b8b3df76dfd3921c2a0fadc455fccbbcf016ceedf154bf53b73e853ca26"
WHAT_RANKS_SEE = "d9d0fe79acba118b25736560754653ee47f2d4063451299539906d3ea0ed5d2a"


def what_ranks_see(reader: Reader) -> str:
    """SHA-256 over what every rank gets at dp 2, cp 3, in order."""
    digest = hashlib.sha256()
    for step in range(reader.num_steps):
        for dp_rank in range(2):
            for cp_rank in range(3):
                for batch in reader.micro_batches(
                    step, dp_rank=dp_rank, dp_size=2, cp_rank=cp_rank, cp_size=3
                ):
                    for array in (
                        batch.tokens.astype("<i8"),
                        batch.labels.astype("<i8"),
                        batch.position_ids.astype("<i8"),
                        batch.query_index.astype("<i8"),
                        batch.key_index.astype("<i8"),
                        batch.cu_seqlens_q.astype("<i8"),
                        batch.cu_seqlens_k.astype("<i8"),
                    ):
                        digest.update(array.tobytes())
    return digest.hexdigest()


def test_the_set_is_the_one_that_was_committed() -> None:
    assert hashlib.sha256((GOLDEN / "manifest.json").read_bytes()).hexdigest() == MANIFEST


def test_verify_believes_it() -> None:
    verify(GOLDEN)


@pytest.mark.parametrize("open_reader", [open_shards, open_plan])
def test_every_rank_sees_what_it_saw_then(open_reader) -> None:  # type: ignore[no-untyped-def]
    assert what_ranks_see(open_reader(GOLDEN)) == WHAT_RANKS_SEE
