"""Which engine encodes changes how long a build takes, and nothing that ranks see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs import tokenizing
from jobs.build import build
from jobs.progress import Reporter
from pipeline.config import RunConfig
from pipeline.reading.listing import list_inputs
from pipeline.reading.sample import sample_texts
from pipeline.settings.documents import SourceConfig
from pipeline.tokenizer import engine
from pipeline.tokenizer.identity import EngineUnavailable, TokenizerError
from tests.corpora import source_of, write_jsonl
from tests.jobs.small_run import QUIET, DyingExecutor, build_with, digests


class Heard(Reporter):
    """Keeps the lines that it is told."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def not_installed() -> str:
    raise EngineUnavailable("not installed")


def with_engine(config: RunConfig, name: str, store: Path | None = None) -> RunConfig:
    tokenizer = config.tokenizer.model_copy(update={"engine": name})
    shards = config.shards.model_copy(update={"store": str(store) if store else None})
    return config.model_copy(update={"tokenizer": tokenizer, "shards": shards})


def test_every_engine_builds_the_same_tokens(
    config: RunConfig, built: Path, tmp_path: Path
) -> None:
    build(with_engine(config, "hf"), tmp_path, QUIET)
    mine, theirs = digests(tmp_path), digests(built)
    differ = {Path(name).name for name in mine.keys() | theirs.keys() if mine[name] != theirs[name]}
    assert differ == {"source.json", "manifest.json", "manifest.sha256"}
    engines = {
        json.loads(path.read_bytes())["engine"]["name"]
        for root in (tmp_path, built)
        for path in root.glob("store/*/source.json")
    }
    assert engines == {"hf", "splintr"}


def test_a_store_serves_a_job_with_another_engine(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    build(with_engine(config, "tiktoken", store), tmp_path / "first", QUIET, dry_run=True)
    monkeypatch.setattr(tokenizing, "_tokenize_split", None)
    heard = Heard()
    build(with_engine(config, "hf", store), tmp_path / "second", heard, dry_run=True)
    assert not any(line.startswith("engine") for line in heard.lines)


def test_no_store_has_parts_of_two_engines(
    config: RunConfig, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    tokenize_split = tokenizing._tokenize_split

    def counted(split: Any, source: Any, identity: Any, directory: Path, scratch: Path) -> Any:
        made.append(f"{identity.engine} {source.name} {split.number}")
        return tokenize_split(split, source, identity, directory, scratch)

    monkeypatch.setattr(tokenizing, "_tokenize_split", counted)
    with pytest.raises(KeyboardInterrupt):
        build_with(DyingExecutor(2), with_engine(config, "hf"), tmp_path, monkeypatch)
    assert made[:2] == ["hf lines 0", "hf lines 1"]
    del made[:]
    build(config, tmp_path, QUIET)
    assert made[:2] == ["splintr lines 0", "splintr lines 1"]
    assert digests(tmp_path) == digests(built)


def test_the_build_says_which_engine_and_why_no_faster_one(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine._VERSION, "splintr", not_installed)
    heard = Heard()
    build(config, tmp_path, heard, dry_run=True)
    (line,) = [line for line in heard.lines if line.startswith("engine")]
    assert line.startswith("engine tiktoken ")
    assert line.endswith(" (splintr: not installed)")


def test_a_named_engine_that_cannot_be_used_stops_the_job_before_it_writes(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine._VERSION, "splintr", not_installed)
    config = with_engine(config, "splintr", tmp_path / "store")
    with pytest.raises(TokenizerError, match=r'"splintr", but splintr: not installed; set it to'):
        build(config, tmp_path / "set", QUIET)
    assert not list(tmp_path.rglob("*.tokens"))


class TestTheSample:
    def sample(self, source: SourceConfig, **settings: int) -> list[str]:
        return sample_texts(source, list_inputs(source), **settings)

    def test_is_taken_from_all_over_a_source_and_cut_to_size(self, tmp_path: Path) -> None:
        texts = [f"{number:05} {'x' * 90}" for number in range(4000)]
        source = source_of(write_jsonl(tmp_path / "a.jsonl", texts))
        found = self.sample(source, split_bytes=10_000, max_characters=4000)
        assert sum(map(len, found)) == 4000
        firsts = [int(text[:5]) for text in found if len(text) == 96]
        assert firsts[0] == 0
        assert firsts[-1] > 3400
        assert all(text in texts or any(t.startswith(text) for t in texts) for text in found)

    def test_of_a_small_source_is_all_of_it(self, tmp_path: Path) -> None:
        source = source_of(write_jsonl(tmp_path / "a.jsonl", ["a", "b c"]))
        assert self.sample(source, split_bytes=10_000, max_characters=4000) == ["a", "b c"]
