"""What rejects do to a job: go on, or stop in one line and go on later without losing work."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import tokenizing
from jobs.executor import LocalExecutor
from jobs.workplace import Workplace
from pipeline.config import ConfigError, RunConfig
from pipeline.config_file import parse_config
from pipeline.reading.listing import SourceError
from pipeline.shard.token_store import TokenStore
from pipeline.stores.rejects import RejectsError
from pipeline.tokenizer.resolve import resolve_tokenizer
from tests.corpora import EOS, some_texts, tiny_tokenizer, write_bytes, write_jsonl
from tests.jobs.small_run import QUIET


def config_of(paths: list[Path], *, rejects: dict[str, object], **source: object) -> RunConfig:
    return parse_config(
        {
            "tokenizer": {"path": str(tiny_tokenizer()), "eos_token": EOS},
            "sources": [{"name": "a", "paths": [str(path) for path in paths], **source}],
            "rejects": rejects,
            "packing": {"num_micro_batches": 2, "context_length": 64, "policy": "reorder"},
            "workload": {"crossover": 100},
            "shards": {"split_bytes": 1024},
            "job": {"executor": "local"},
        },
        name="run",
    )


def make_store(config: RunConfig, out: Path) -> TokenStore:
    identity = resolve_tokenizer(config.tokenizer)
    corpora = tokenizing.find_corpora(config, identity, Workplace.of(out, config.job))
    (store,) = tokenizing.tokenize(corpora, identity, config, LocalExecutor(), QUIET)
    return store


def test_a_reason_that_stops_is_named_with_file_and_record_and_can_be_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", some_texts(60))
    lines = path.read_bytes().splitlines(keepends=True)
    write_bytes(path, b"".join([*lines[:40], b"{oops\n", *lines[40:]]))
    out = tmp_path / "out"
    stop = {"stop_on": ["truncated", "broken_json"]}
    with pytest.raises(RejectsError, match=r"a\.jsonl, record \d+ after [\d,]+ bytes: broken_j"):
        make_store(config_of([path], rejects=stop), out)
    done = len(list(out.glob("store/a-*/parts/*.tokens")))
    assert done
    with pytest.raises(RejectsError, match="broken_json"):  # from the ledger's receipt
        make_store(config_of([path], rejects=stop), out)
    tokenized = []
    real = tokenizing._tokenize_split
    monkeypatch.setattr(
        tokenizing, "_tokenize_split", lambda *args: tokenized.append(args) or real(*args)
    )
    store = make_store(config_of([path], rejects={}), out)
    assert store.documents == 60
    assert len(tokenized) == len(store.parts) - done
    with pytest.raises(RejectsError, match=r"a\.jsonl, record 40: broken_json"):
        make_store(config_of([path], rejects=stop), out)  # from the finished store


def test_a_wrong_text_column_stops_and_the_list_is_where_the_message_says(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", some_texts(150))
    with pytest.raises(RejectsError, match=r"150 of 150 records .*150 missing_text") as caught:
        make_store(config_of([path], rejects={}, text_column="body"), tmp_path / "out")
    table = next(word for word in str(caught.value).split() if word.endswith("rejects.parquet:"))
    assert Path(table.rstrip(":")).is_file()


def test_repeated_ids_stop_the_job_before_a_token_is_made_or_from_the_finished_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", some_texts(60))
    second = write_jsonl(tmp_path / "b.jsonl", some_texts(3, seed=1))  # ids 0 to 2 again

    def store(policy: str, **rejects: object) -> TokenStore:
        config = config_of([first, second], rejects=rejects, id_column="id", duplicate_ids=policy)
        return make_store(config, tmp_path / "out")

    message = r"source 'a': 3 records have the id of an earlier one, first b\.jsonl, record 0; remo"
    with monkeypatch.context() as patch:
        patch.setattr(tokenizing, "_tokenize_split", None)
        with pytest.raises(RejectsError, match=message):
            store("stop")
    assert store("count").documents == 63
    with pytest.raises(RejectsError, match=message):
        store("stop")
    assert store("reject").identity["rejected"] == {"duplicate_id": 3}
    with pytest.raises(RejectsError, match=r"b\.jsonl, record 0: duplicate_id \(id 0\)"):
        store("reject", stop_on=["duplicate_id"])


def test_an_id_column_that_no_record_has_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", some_texts(5))
    with pytest.raises(SourceError, match="no record has a string or a whole number in 'uid'"):
        make_store(config_of([path], rejects={}, id_column="uid"), tmp_path / "out")
    with pytest.raises(ConfigError, match='duplicate_ids is "stop" but id_column is not set'):
        config_of([path], rejects={}, duplicate_ids="stop")
