"""Counts beyond 32 bits without the bytes: files with holes, lists of nothing, made-up offsets."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packer.packing.packer import MOST_STEP_WORK
from packer.plan import Pieces, Steps
from pipeline.materialize import MoveJob, assemble_shard
from pipeline.planning.chain import ChainEnd
from pipeline.planning.mixing import PlanError
from pipeline.planning.plan_parts import (
    MOST_ENTRIES,
    PlanParts,
    as_offsets,
    plan_table,
    read_plan_part,
)
from pipeline.planning.runs import RunGroups, run_path, write_inverse
from pipeline.reading.listing import list_inputs
from pipeline.reading.splits import plan_splits
from pipeline.reading.token_records import read_tokens
from pipeline.settings.packing import PackingSettings
from pipeline.shard import schema
from pipeline.shard.digests import content_sha256
from pipeline.shard.rank_chunks import RankChunks
from pipeline.shard.rank_views import rank_view, rank_views
from pipeline.shard.spans import LARGEST_BOUNDARY, boundaries
from pipeline.shard.token_store import TokenStore
from pipeline.shard.writer import write_part
from pipeline.stores.tokenize import MAX_DOCUMENT_TOKENS
from pipeline.verify.part import PartTable
from pipeline.verify.quotas import Quotas
from pipeline.verify.result import VerifyError
from pipeline.verify.stores import RawStore, write_index
from tests.changes import check_is_found, segment
from tests.corpora import source_of
from tests.fixture_files import StoreData, write_store
from tests.fixture_set import SetData
from tests.micro_batches import chunks, micro_batch

MOST = (1 << 31) - 1
LONGEST_DOCUMENT = (1 << 32) - 1


def lists_of_nothing(*lengths: int) -> pa.ListArray:
    """Lists of nulls, which take no memory."""
    offsets = np.cumsum([0, *lengths])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.nulls(int(offsets[-1])))


def steps_of(tokens: list[int], *, slots: int = 1, first_step: int = 0, **columns: Any) -> Steps:
    """A piece a micro-batch, of its own document each, so many tokens long."""
    length, zeros = np.array(tokens, np.int64), np.zeros(len(tokens), np.int64)
    fields = {
        "source": zeros,
        "epoch": zeros,
        "doc_id": np.arange(len(tokens)),
        "doc_start": zeros,
        "doc_stop": length,
        "doc_tokens": length,
        "position": np.cumsum(length) - length,
    }
    return Steps(
        first_step=first_step,
        num_micro_batches=slots,
        pieces=Pieces(**{**fields, **columns}),
        row_offsets=np.arange(len(tokens) + 1),
        row_workload=np.ones(len(tokens), np.int64),
    )


def chain_of(sources: int) -> ChainEnd:
    """The start of a chain of so many sources, whose stores nobody reads."""
    stores: Any = [None] * sources
    return ChainEnd.start(stores)


class TestLists:
    def test_offsets_reach_to_the_end_of_32_bits_and_not_beyond(self) -> None:
        assert as_offsets(np.array([0, MOST])).to_pylist() == [0, MOST]
        with pytest.raises(PlanError, match=r"list column of 2147483648 entries.*shard_tokens"):
            as_offsets(np.array([0, MOST + 1]))

    def test_chunks_that_cannot_be_joined_are_named_with_their_file(self) -> None:
        table = PartTable.__new__(PartTable)
        table.path = Path("plan/00000.parquet")
        table._table = pa.table({"doc_id": pa.chunked_array([lists_of_nothing(MOST)])})
        assert table.offsets("doc_id").tolist() == [0, MOST]
        two = pa.chunked_array([lists_of_nothing(MOST), lists_of_nothing(1)])
        table._table = pa.table({"doc_id": two})
        with pytest.raises(VerifyError, match=r"plan/00000.parquet: column 'doc_id' has more than"):
            table.offsets("doc_id")

    @pytest.mark.parametrize(
        ("tokens", "slots", "message"),
        [
            ([1 << 26] * 32, 1, r"shard 0 would have .* 2147483648 entries.*lower shards.shard_to"),
            ([1 << 26] * 32, 32, r"shard 0 .* it is one step: lower packing.num_micro_batches"),
        ],
    )
    def test_a_shard_that_no_list_holds_is_refused_while_it_is_planned(
        self, tmp_path: Path, tokens: list[int], slots: int, message: str
    ) -> None:
        groups = RunGroups(source_base=np.zeros(1, np.int64), starts=np.zeros(1, np.int64))
        options: Any = {"groups": groups, "steps_per_part": 32 // slots, "chain": chain_of(1)}
        with pytest.raises(PlanError, match=message):
            PlanParts(tmp_path, tmp_path, **options).add(steps_of(tokens, slots=slots))
        assert list(tmp_path.rglob("*.parquet")) == []
        fits = [*tokens[1:], (1 << 26) - 1]
        PlanParts(tmp_path, tmp_path, **options).add(steps_of(fits, slots=slots))
        assert list(tmp_path.rglob("*.parquet")) == [tmp_path / "plan/00000.parquet"]

    def test_too_many_shares_of_steps_are_refused(self, tmp_path: Path) -> None:
        groups = RunGroups(source_base=np.zeros(1, np.int64), starts=np.zeros(1, np.int64))
        parts = PlanParts(tmp_path, tmp_path, groups=groups, steps_per_part=1, chain=chain_of(1024))
        parts.add(steps_of([3], first_step=(1 << 21) - 2))
        with pytest.raises(PlanError, match=r"steps.parquet.* 2147483648 entries.*join sources"):
            parts.add(steps_of([3], first_step=(1 << 21) - 1))


def test_a_plan_part_holds_numbers_of_64_bits(tmp_path: Path) -> None:
    late, far = (1 << 62) - 100, (1 << 40) + 3
    steps = steps_of(
        [5, 7],
        first_step=(1 << 33) + 1,
        doc_id=np.array([far, 1 << 61]),
        doc_start=np.array([far, LONGEST_DOCUMENT - 7]),
        doc_stop=np.array([far + 5, LONGEST_DOCUMENT]),
        doc_tokens=np.array([far + 5, LONGEST_DOCUMENT]),
        position=np.array([late, late + 5]),
    )
    receipt = write_part(plan_table(steps), tmp_path, "plan/00000.parquet", rows_per_group=1)
    found = read_plan_part(tmp_path / "plan/00000.parquet")
    assert found.first_step == steps.first_step
    for name in ("doc_id", "doc_start", "doc_stop", "position"):
        np.testing.assert_array_equal(getattr(found.pieces, name), getattr(steps.pieces, name))
    assert [group.first_step for group in receipt.row_groups] == [2**33 + 1, 2**33 + 2, 2**33 + 1]
    assert receipt.content_sha256 == content_sha256(plan_table(found))


class TestBoundaries:
    def test_end_with_32_bits(self) -> None:
        assert boundaries(np.array([MOST - 1, 1])).tolist() == [0, MOST - 1, MOST]
        with pytest.raises(ValueError, match=r"boundaries up to 2147483648; .*plan smaller micro"):
            boundaries(np.array([MOST, 1]))

    def test_keys_of_many_chunks_of_a_long_piece_are_refused_not_wrapped(self) -> None:
        length, count = 1 << 17, 1 << 15
        step = length // count
        parts = [(i * step, (i + 1) * step) for i in range(count)]
        batch = micro_batch([1] * length, [0, length], [-100])
        dealt = chunks(*sorted((i % 2, 0, *part) for i, part in enumerate(parts)))
        keys = sum(stop for _, stop in parts[1::2])
        assert 1 << 30 < keys < MOST
        assert rank_view(batch, dealt, 1, 2).cu_seqlens_k[-1] == keys
        assert sum(stop for _, stop in parts) > MOST
        with pytest.raises(ValueError, match=r"keys in 32 bits.*fewer chunks"):
            rank_view(batch, chunks(*((0, 0, *part) for part in parts)), 0, 2)

    def test_so_are_those_of_one_of_several_micro_batches(self) -> None:
        start = np.array([0, MOST - 10, MOST - 9])

        def views(counts: list[int]) -> list[Any]:
            zeros = np.zeros(3, np.int64)
            held = RankChunks(
                counts=np.array(counts),
                piece=zeros,
                piece_start=zeros,
                piece_length=np.full(3, MOST),
                start=start,
                length=np.ones(3, np.int64),
                whole=False,
            )
            return rank_views(
                [(0, 0, 1), (0, 1, 1)], held, lambda _, out: out[:], cp_rank=0, cp_size=2
            )

        with pytest.raises(ValueError, match="keys in 32 bits"):
            views([1, 2])
        assert [view.cu_seqlens_k[-1] for view in views([2, 1])] == [MOST - 8, MOST - 8]


def store_with_holes(directory: Path) -> Path:
    """Two documents as long as can be, which are holes in a file of 16 GiB, and one of 5 tokens."""
    lengths = [LONGEST_DOCUMENT, LONGEST_DOCUMENT, 5]
    offsets = [0, LONGEST_DOCUMENT, 2 * LONGEST_DOCUMENT]
    index = {"offset": offsets, "length": lengths, "file": [0] * 3, "record": [0, 1, 2]}
    table = {"part": [0], "first_doc_id": [0], "documents": [3], "tokens": [sum(lengths)],
             "file": [0], "first_record": [0]}  # fmt: skip
    identity = {"format": schema.STORE_FORMAT, "version": 1, "name": "holes", "key": "0" * 64,
                "dtype": "uint16", "documents": 3, "tokens": sum(lengths)}  # fmt: skip
    data = StoreData(
        name="holes",
        source=identity,
        documents=[],
        parts=[[]],
        index=[index],
        parts_table=table,
        inputs={"path": ["a"], "bytes": [1], "xxh3_128": ["0" * 32]},
        rejects={name: [] for name in schema.REJECTS.names},
        lengths=lengths,
    )
    write_store(data, directory)
    with (directory / "parts/00000.tokens").open("r+b") as file:
        file.seek(2 * (offsets[1] - 2))
        file.write(np.array([11, 12, 13, 14], "<u2").tobytes())  # around the first border
        file.seek(2 * offsets[2])
        file.write(np.array([21, 22, 23, 24, 25], "<u2").tobytes())
    return directory


class TestStores:
    def test_tokens_behind_2_to_33_others_are_found(self, tmp_path: Path) -> None:
        store = TokenStore(store_with_holes(tmp_path))
        assert store.tokens_of(2).tolist() == [21, 22, 23, 24, 25]
        last = LONGEST_DOCUMENT
        asked = [np.array(column) for column in ([2, 0, 1], [1, last - 2, 0], [4, last, 2])]
        assert store.gather(*asked).tolist() == [22, 23, 24, 11, 12, 13, 14]
        found, after = store.pieces(*asked, most_taken=1 << 62)
        assert [piece.tolist() for piece in found] == [[22, 23, 24], [11, 12], [13, 14]]
        assert after.tolist() == [25, -100, 0]
        assert store.lengths_of(np.arange(3)).tolist() == [last, last, 5]
        assert store.origin_of(2) == ("a", 2)

    def test_and_verify_finds_the_same(self, tmp_path: Path) -> None:
        directory = store_with_holes(tmp_path)
        tokens = np.array([2 * LONGEST_DOCUMENT + 5])
        write_index(directory, tokens, tmp_path / "index")
        raw = RawStore(directory, "uint16", tmp_path / "index")
        assert raw.tokens == 2 * LONGEST_DOCUMENT + 5
        last = LONGEST_DOCUMENT
        asked = [np.array(column) for column in ([2, 0, 1], [1, last - 2, 0], [4, last, 2])]
        assert raw.gather(*asked).tolist() == [22, 23, 24, 11, 12, 13, 14]

    def test_a_megatron_file_beyond_2_to_34_bytes_is_read_and_its_giants_refused(
        self, tmp_path: Path
    ) -> None:
        lengths, size = [MOST, MOST, MOST, 3], 4
        pointers = (np.cumsum([0, *lengths[:-1]]) * size).tolist()
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 4, 4)
        tables = [struct.pack("<4i", *lengths), struct.pack("<4q", *pointers)]
        bounds = struct.pack("<4q", 0, 1, 3, 4)  # the second document has two sequences
        (tmp_path / "a.idx").write_bytes(b"".join([head, *tables, bounds]))
        with (tmp_path / "a.bin").open("wb") as file:
            file.seek(pointers[-1])
            file.write(np.array([7, 8, 9], "<i4").tobytes())
        source = source_of(tmp_path / "a.idx", format="megatron")
        splits = plan_splits(source, list_inputs(source), split_bytes=1 << 20)
        assert pointers[-1] > 1 << 34
        found = [batch for split in splits
                 for batch in read_tokens(split, source, longest=MAX_DOCUMENT_TOKENS)]  # fmt: skip
        refused = [reject.detail for batch in found for reject in batch.rejects]
        assert [detail.partition(",")[0] for detail in refused] == [
            f"{MOST} tokens", f"{2 * MOST} tokens",
        ]  # fmt: skip
        assert [batch.ids.tolist() for batch in found if len(batch.ids)] == [[7, 8, 9]]


def test_runs_are_read_behind_2_to_33_tokens_of_other_parts(tmp_path: Path) -> None:
    steps = steps_of([3, 2], slots=2, first_step=1, position=np.array([9, 12]))
    write_part(plan_table(steps), tmp_path, "plan/00001.parquet")
    groups = RunGroups(source_base=np.zeros(1, np.int64), starts=np.zeros(1, np.int64))
    write_inverse(tmp_path, 1, steps.pieces, groups)
    before = (1 << 33, 4)  # tokens and pieces of part 0
    (tmp_path / "runs").mkdir()
    for kind, place, values in (
        ("tokens", 2 * before[0], np.array([1, 2, 3, 4, 5], "<u2")),
        ("labels", 8 * before[1], np.array([-100, 6], "<i8")),
    ):
        with run_path(tmp_path, 0, kind).open("wb") as file:
            file.seek(place)
            file.write(values.tobytes())
    with run_path(tmp_path, 0, "offsets").open("wb") as file:
        np.save(file, np.array([(0, 0), before, (before[0] + 5, before[1] + 2)]))
    job = MoveJob(
        root=str(tmp_path),
        scratch=str(tmp_path),
        stores=("unused",),
        most_taken=(1 << 62,),
        dtype="uint16",
        parts=range(2),
        num_groups=1,
        rows_per_group=1,
    )
    assemble_shard(job, 1)
    shard = pq.read_table(tmp_path / "shards/00001.parquet")
    assert shard["tokens"].to_pylist() == [[1, 2, 3], [4, 5]]
    assert shard["last_labels"].to_pylist() == [[-100], [6]]
    assert shard["step"].to_pylist() == [1, 1]


def test_quotas_hold_to_the_end_of_a_stream_of_62_bits() -> None:
    entries = tuple(SimpleNamespace(source=i, weight=w) for i, w in enumerate((0.75, 0.25)))
    segment: Any = SimpleNamespace(sources=entries, context_length=1 << 25)
    passes: Any = [SimpleNamespace(entry=entry) for entry in entries]
    quotas = Quotas(segment, passes, until=1 << 62)
    source = np.array([0, 0, 1, 0])
    tokens = np.full(4, 1 << 25)
    quotas._emitted[:] = (3 << 59, 1 << 59)
    assert quotas.first_offender(source, tokens) is None
    quotas._emitted[:] = (3 << 59, (1 << 59) + (1 << 34))
    offender = quotas.first_offender(source, tokens)
    assert offender is not None
    assert "too far from" in offender[1]


@pytest.mark.parametrize("pieces", [20, 1 << 62])
def test_a_stream_that_claims_62_bits_is_found(pieces: int, tmp_path: Path) -> None:
    def claim(data: SetData) -> None:
        segment(stream_tokens=1 << 62)(data)
        data.manifest["totals"]["stream_pieces"] = pieces

    check_is_found(claim, "tail.parquet", "end at stream position 264", tmp_path)


def test_more_parts_than_steps_are_refused_before_any_is_listed(tmp_path: Path) -> None:
    message = "a segment has 1099511627776 parts and 8 steps"
    check_is_found(segment(parts=1 << 40), "manifest.json", message, tmp_path)


def test_the_bounds_are_those_of_the_format_page() -> None:
    def power(field: str) -> str:
        info = PackingSettings.model_fields[field]
        rules: list[Any] = list(info.metadata)
        (most,) = [rule.le for rule in rules if hasattr(rule, "le")]
        return f"2^{most.bit_length() - 1}"

    page = (Path(__file__).parents[2] / "docs" / "FORMAT.md").read_text()
    bounds = page.partition("\n## 8. Bounds\n")[2]
    assert f"2^{MAX_DOCUMENT_TOKENS.bit_length() - 1}; a longer record is a reject" in bounds
    assert f"S {power('context_length')}, S_max {power('max_tokens')} |" in bounds
    assert f"N {power('num_micro_batches')} |" in bounds
    assert f"below 2^{MOST_STEP_WORK.bit_length() - 1}; refused" in bounds
    assert MOST_ENTRIES == LARGEST_BOUNDARY == MOST
