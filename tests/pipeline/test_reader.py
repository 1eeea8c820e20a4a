"""The reader, on a set that was written by hand from docs/FORMAT.md."""

import copy
import itertools
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from packer.orders import ORDERS
from pipeline.shard.manifest import load_manifest
from pipeline.shard.micro_batch import MicroBatch
from pipeline.shard.rank_views import rank_view
from pipeline.shard.reader import Reader, open_plan, open_shards
from pipeline.shard.tables import NotInSet
from tests.changes import padded
from tests.fixture_contents import PARTS, SLOTS, STEPS, document_tokens, length_of
from tests.fixture_files import write_manifest
from tests.fixture_set import SetData, first_and_extended, make_set


def everything(reader: Reader) -> list[MicroBatch]:
    return [reader.micro_batch(step, slot) for step in range(STEPS) for slot in range(SLOTS)]


def test_both_backends_read_what_was_written(reader: Reader, data: SetData):
    rows = {name: data.shards[0][name] + data.shards[1][name] for name in data.shards[0]}
    for row, micro_batch in enumerate(everything(reader)):
        for name, values in rows.items():
            assert np.array_equal(getattr(micro_batch, name), values[row]), name
        assert micro_batch.tokens.dtype == np.uint16
        assert np.count_nonzero(micro_batch.labels != -100) == micro_batch.num_targets


def test_every_label_is_the_documents_next_token(reader: Reader, data: SetData):
    ends = continued = 0
    for micro_batch in everything(reader):
        for i, source in enumerate(micro_batch.source.tolist()):
            doc_id, start = int(micro_batch.doc_id[i]), int(micro_batch.doc_start[i])
            length = length_of({"source": source, "doc_id": doc_id})
            document = [*document_tokens(source, doc_id, length), -100]
            first, stop = micro_batch.cu_seqlens[i : i + 2].tolist()
            labels = micro_batch.labels[first:stop].tolist()
            assert labels == document[start + 1 : start + 1 + stop - first]
            ends, continued = ends + (labels[-1] == -100), continued + (labels[-1] != -100)
    assert ends
    assert continued  # pieces that end inside their document did occur


@pytest.mark.parametrize("cp_size", [1, 2])
@pytest.mark.parametrize("dp_size", [1, 2])
def test_ranks_together_run_every_token_once(reader: Reader, dp_size: int, cp_size: int):
    for step in range(STEPS):
        tokens, targets, slots = [], 0, []
        for dp_rank in range(dp_size):
            shapes = reader.shapes(step, dp_rank=dp_rank, dp_size=dp_size, cp_size=cp_size)
            for cp_rank in range(cp_size):
                views = reader.micro_batches(
                    step, dp_rank=dp_rank, dp_size=dp_size, cp_rank=cp_rank, cp_size=cp_size
                )
                for index, view in enumerate(views):
                    slots.append(view.slot)
                    tokens += view.tokens.tolist()
                    targets += view.num_targets
                    assert shapes[index, cp_rank] == len(view.tokens)
                    assert view.workload == reader.micro_batch(step, view.slot).workload > 1
        assert sorted(slots) == sorted([*range(SLOTS)] * cp_size)
        whole = np.concatenate([reader.micro_batch(step, slot).tokens for slot in range(SLOTS)])
        assert sorted(tokens) == sorted(whole.tolist())
        assert targets == reader.global_targets(step)


def test_slots_are_dealt_back_and_forth(reader: Reader):
    slots = [view.slot for view in reader.micro_batches(0, dp_rank=0, dp_size=1)]
    assert slots == [0, 1]
    for dp_rank in range(2):
        views = list(reader.micro_batches(3, dp_rank=dp_rank, dp_size=2))
        assert [(view.step, view.slot) for view in views] == [(3, dp_rank)]


@pytest.mark.parametrize("rule", ORDERS)
@pytest.mark.parametrize("open_reader", [open_shards, open_plan])
def test_ranks_follow_the_manifests_order(
    tmp_path: Path, data: SetData, rule: str, open_reader: Callable[[Path], Reader]
):
    directory = data.write(tmp_path)
    write_manifest(directory, data.manifest | {"micro_batch_order": rule})
    reader = open_reader(directory)
    expected = ORDERS[rule](SLOTS)  # at dp 1 a rank's micro-batches are the slots
    views = list(reader.micro_batches(0, dp_rank=0, dp_size=1))
    assert [view.slot for view in views] == expected
    shapes = reader.shapes(0, dp_rank=0, dp_size=1)
    assert shapes[:, 0].tolist() == [len(view.tokens) for view in views]
    assert {tuple(ORDERS[name](SLOTS)) for name in ORDERS} == {(0, 1), (1, 0)}


@pytest.mark.parametrize("cp_size", [1, 2])
def test_shapes_are_known_without_the_tokens(tmp_path: Path, data: SetData, cp_size: int):
    directory = data.write(tmp_path)
    rank = {"dp_rank": 0, "dp_size": 1, "cp_size": cp_size}
    expected = open_shards(directory).shapes(3, **rank)
    shutil.rmtree(directory / "shards")
    assert np.array_equal(open_shards(directory).shapes(3, **rank), expected)


def test_any_step_can_be_read_first(directory: Path):
    last = open_shards(directory).micro_batch(STEPS - 1, 0)
    assert (last.step, last.slot) == (STEPS - 1, 0)
    assert open_shards(directory).num_steps == STEPS


def test_cached_rows_cannot_be_changed_by_a_caller(directory: Path):
    with pytest.raises(ValueError, match="read-only"):
        open_shards(directory).micro_batch(0, 0).tokens[0] = 1


def test_a_dp_size_that_does_not_divide_the_step_is_refused(reader: Reader):
    with pytest.raises(ValueError, match=r"dp_size 3 does not divide the 2 .* use one of \[1, 2\]"):
        reader.micro_batches(0, dp_rank=0, dp_size=3)


def test_a_cp_size_without_a_plan_names_the_command_that_makes_one(reader: Reader, directory: Path):
    with pytest.raises(NotInSet, match=f"steelyard replan {directory} --cp-size 4"):
        reader.micro_batches(0, dp_rank=0, dp_size=1, cp_size=4)
    with pytest.raises(NotInSet, match=f"steelyard replan {directory} --cp-size 8"):
        reader.exchange(0, 0, cp_rank=0, cp_size=8)
    with pytest.raises(ValueError, match=r"only of \[1, 2\]"):
        reader.shapes(0, dp_rank=0, dp_size=1, cp_size=3)


def test_the_command_can_be_pasted_where_the_path_has_a_space(tmp_path: Path, data: SetData):
    directory = data.write(tmp_path / "my set")
    with pytest.raises(NotInSet) as caught:
        open_shards(directory).micro_batches(0, dp_rank=0, dp_size=1, cp_size=4)
    command = str(caught.value).partition("make one with: ")[2]
    assert shlex.split(command) == ["steelyard", "replan", str(directory), "--cp-size", "4"]


def test_exchange_lists_go_with_the_rank_views(reader: Reader):
    received = 0
    for step, slot in itertools.product(range(STEPS), range(SLOTS)):
        whole = reader.micro_batch(step, slot)
        plan = reader.chunks(step, slot, 2)
        for cp_rank in range(2):
            table = reader.exchange(step, slot, cp_rank=cp_rank, cp_size=2)
            view = rank_view(whole, plan, cp_rank, 2)
            assert table.cu_seqlens_k.tolist() == view.cu_seqlens_k.tolist()
            assert table.num_tokens == len(view.tokens)
            received += table.num_received
        alone = reader.exchange(step, slot, cp_rank=0, cp_size=1)
        assert alone.buffer_index.tolist() == list(range(len(whole.tokens)))
    assert received > 0


@pytest.mark.parametrize("open_reader", [open_shards, open_plan])
def test_padded_micro_batches_have_the_tokens_of_the_plain_ones(
    tmp_path: Path, open_reader: Callable[[Path], Reader]
):
    data = make_set()
    padded(12)(data)
    reader = open_reader(data.write(tmp_path))
    pads = 0
    for step in range(STEPS):
        plain = reader.shapes(step, dp_rank=0, dp_size=1, cp_size=2)
        lengths = []
        for cp_rank in range(2):
            rank = {"dp_rank": 0, "dp_size": 1, "cp_rank": cp_rank, "cp_size": 2}
            views = list(reader.padded_micro_batches(step, **rank, pad_token=9_999))
            lengths.append([len(view.tokens) for view in views])
            for view, other in zip(views, reader.micro_batches(step, **rank), strict=True):
                assert (view.step, view.slot) == (other.step, other.slot)
                real = view.tokens != 9_999
                pads += int((~real).sum())
                assert view.tokens[real].tolist() == other.tokens.tolist()
                assert view.labels[real].tolist() == other.labels.tolist()
                assert view.position_ids[real].tolist() == other.position_ids.tolist()
            assert plain[:, cp_rank].tolist() == [
                int((view.tokens != 9_999).sum()) for view in views
            ]
        assert lengths[0] == lengths[1]
    assert pads > 100
    alone = reader.padded_micro_batches(0, dp_rank=0, dp_size=1)
    assert [view.slot for view in alone] == list(range(SLOTS))


def test_padding_from_a_plan_without_names_the_command_that_makes_one(
    reader: Reader, directory: Path
):
    for cp_size in (2, 4):  # a plan without pads, and none at all
        command = f"steelyard replan {directory} --cp-size {cp_size} --strategy padded_head_tail"
        with pytest.raises(NotInSet, match=command):
            reader.padded_micro_batches(0, dp_rank=0, dp_size=1, cp_size=cp_size)


@pytest.mark.parametrize(
    ("step", "slot", "message"),
    [(STEPS, 0, r"not in 0\.\.7"), (-1, 0, "step -1"), (0, 2, r"slot 2 is not in 0\.\.1")],
)
def test_a_place_that_does_not_exist_is_refused(reader: Reader, step: int, slot: int, message: str):
    with pytest.raises(ValueError, match=message):
        reader.micro_batch(step, slot)
    with pytest.raises(ValueError, match="not in"):
        reader.micro_batches(0, dp_rank=2, dp_size=2)
    with pytest.raises(ValueError, match="not in"):
        reader.micro_batches(0, dp_rank=0, dp_size=2, cp_rank=2, cp_size=2)


def test_manifest_helpers_find_steps_segments_and_parts(directory: Path, data: SetData):
    manifest = load_manifest(directory)
    assert manifest.num_steps == STEPS
    assert [manifest.part_of(step) for step in range(STEPS)] == [0] * PARTS[0] + [1] * PARTS[1]
    assert [manifest.first_step_of(part) for part in range(2)] == [0, PARTS[0]]
    assert manifest.segment_of(STEPS - 1) is manifest.segments[0]
    assert manifest.cp_path(1, 2) == directory / "cp=2/00001.parquet"
    assert manifest.store_path(0).is_dir()
    assert manifest.workload.parameters["crossover"] == data.manifest["workload"]["crossover"]
    with pytest.raises(ValueError, match="step 8 is not in"):
        manifest.segment_of(STEPS)


def test_steps_are_known_again_by_their_content(tmp_path: Path, data: SetData):
    first, extended = first_and_extended(data)
    other = copy.deepcopy(first)
    other.shards[0]["tokens"][0][0] += 1
    extended.manifest["cp"] = {}
    extended.cp.clear()
    begun, grown, changed = (
        open_shards(kind.write(tmp_path / name))
        for name, kind in (("first", first), ("extended", extended), ("other", other))
    )
    for step in range(PARTS[0] + 1):
        assert begun.steps_digest(step) == grown.steps_digest(step)
        assert (begun.steps_digest(step) == changed.steps_digest(step)) == (step == 0)
    assert begun.steps_digest(PARTS[0]) != grown.steps_digest(PARTS[0] + 1)
    assert grown.steps_digest(STEPS) == open_plan(tmp_path / "extended").steps_digest(STEPS)
    with pytest.raises(NotInSet, match=rf"step 6 is not in 0\.\.{PARTS[0]}"):
        begun.steps_digest(PARTS[0] + 1)


def test_reading_needs_neither_numba_nor_ray():
    code = (
        "import sys, pipeline.shard.reader; "
        "assert not {'numba', 'ray', 'torch', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
