"""Law 7: damage is found when it is read, and is never trained on; a reader that skips it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.shard import parts
from pipeline.shard.token_store import StoreError, TokenStore
from tests.fixture_set import make_set
from tests.laws.noticed import noticed
from tests.pipeline import test_reader_damage


@pytest.mark.parametrize("folder", ["shards", "plan", "cp=2"])
def test_a_reader_that_does_not_hash_row_groups_is_noticed(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unhashed: list[int] = []

    def unchecked(part: Any, place: int) -> Any:
        unhashed.append(place)
        _, offset, length = part._ranges[place]
        return part._bytes.read(offset, length)

    check = test_reader_damage.test_a_flipped_bit_is_found_on_reading_and_its_row_group_named
    check(tmp_path / "right", make_set(), folder, 0)
    monkeypatch.setattr(parts._Part, "_intact", unchecked)
    with noticed(StoreError):  # or garbage is looked up
        check(tmp_path / "wrong", make_set(), folder, 0)
    assert 0 in unhashed


def test_a_reader_of_plans_that_does_not_hash_tokens_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = test_reader_damage.test_damaged_tokens_of_a_store_are_found_on_reading
    check(tmp_path / "right", make_set())
    unhashed: list[int] = []
    monkeypatch.setattr(TokenStore, "check_blocks", lambda store, part: unhashed.append(part))
    with noticed():
        check(tmp_path / "wrong", make_set())
    assert unhashed
