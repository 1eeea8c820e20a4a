from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import ConfigError
from pipeline.config_file import parse_config
from pipeline.stores.rejects import MIN_REJECTED, REASONS, RejectsError, check_share, check_stop_on
from tests.corpora import build_store, source_of, write_bytes

TABLE = Path("rejects.parquet")


def share(rejected: int, documents: int, max_share: float = 0.1) -> None:
    check_share({"missing_text": rejected}, documents, max_share, source="a", table=TABLE)


class TestShare:
    @pytest.mark.parametrize(
        ("rejected", "documents"),
        [(0, 0), (3, 5), (MIN_REJECTED - 1, 1), (MIN_REJECTED, 9 * MIN_REJECTED)],
    )
    def test_a_few_rejects_of_a_small_source_and_a_small_share_of_a_large_one_go_on(
        self, rejected: int, documents: int
    ) -> None:
        share(rejected, documents)

    @pytest.mark.parametrize(
        ("rejected", "documents"), [(1, 0), (MIN_REJECTED, 9 * MIN_REJECTED - 1)]
    )
    def test_a_source_without_a_document_and_a_large_share_stop(
        self, rejected: int, documents: int
    ) -> None:
        with pytest.raises(RejectsError, match=rf"{rejected} of .*\({rejected} missing_text"):
            share(rejected, documents)

    def test_duplicates_that_were_to_be_refused_do_not_stop(self) -> None:
        check_share({"duplicate_id": 900}, 100, 0.1, source="a", table=TABLE)
        rejected = {"duplicate_id": 900, "bad_utf8": 101}
        with pytest.raises(RejectsError, match=r"101 of 1,001 records were .*\(101 bad_utf8\)"):
            check_share(rejected, 0, 0.1, source="a", table=TABLE)

    def test_a_share_of_one_never_stops(self) -> None:
        share(10_000, 0, 1.0)

    def test_the_message_says_where_the_list_is_and_what_to_do(self) -> None:
        with pytest.raises(RejectsError) as caught:
            share(1500, 500, 0.25)
        assert str(caught.value) == (
            "source 'a': 1,500 of 2,000 records were rejected (1,500 missing_text), more than "
            "rejects.max_share 0.25 allows; they are listed in rejects.parquet: correct "
            "text_column, token_column, the tokenizer or the files, or raise rejects.max_share"
        )


class TestStopOn:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        content = b'{"text": "a"}\n{}\n{"text": 3}\n{oops\n{"text": 4}\n'
        source = source_of(write_bytes(tmp_path / "a.jsonl", content))
        return build_store(source, tmp_path) / "rejects.parquet"

    def test_the_first_record_of_the_reason_is_named(self, table: Path) -> None:
        rejected = {"missing_text": 1, "text_not_string": 2, "broken_json": 1}
        with pytest.raises(RejectsError) as caught:
            check_stop_on(rejected, ["broken_json", "text_not_string"], source="a", table=table)
        assert str(caught.value) == (
            "source 'a': a.jsonl, record 2: text_not_string ('text' is a JSON int); "
            "rejects.stop_on names 'text_not_string': repair or remove the record, or take the "
            "reason from the list"
        )

    def test_other_reasons_go_on(self, table: Path) -> None:
        check_stop_on({"missing_text": 1}, ["truncated"], source="a", table=table)
        check_stop_on({"missing_text": 1}, [], source="a", table=table)


def config_with(**rejects: object) -> object:
    return parse_config(
        {
            "tokenizer": {"path": "x"},
            "sources": [{"name": "a", "paths": ["a"]}],
            "packing": {"num_micro_batches": 1, "context_length": 8},
            "workload": {"crossover": 1},
            "rejects": rejects,
        },
        name="run.toml",
    )


def test_a_reason_that_is_none_is_refused_with_the_nearest() -> None:
    config_with(stop_on=list(REASONS))
    with pytest.raises(ConfigError, match=r"rejects.stop_on: .*'brokn_json'; did you mean 'broken"):
        config_with(stop_on=["brokn_json"])
    with pytest.raises(ConfigError, match="known: broken_json, not_an_object"):
        config_with(stop_on=["zzz"])


def test_every_reason_stands_in_the_format_page() -> None:
    page = (Path(__file__).parents[2] / "docs/FORMAT.md").read_text()
    assert all(f"`{reason}`" in page for reason in REASONS)
