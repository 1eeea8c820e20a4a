"""Sources that the package `datasets` loads: local ones, since tests have no network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.config import ConfigError
from pipeline.config_file import parse_config
from pipeline.files.storage import digest_file
from pipeline.reading.listing import SourceError, list_inputs
from pipeline.reading.splits import plan_splits
from pipeline.settings.documents import SourceConfig
from pipeline.shard.token_store import TokenStore
from tests.corpora import build_store, source_of, write_bytes

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of two splits and as many formats as a folder may have: one."""
    write_bytes(tmp_path / "in/train.csv", b"id,text\n7,one\n8,two\n9,\n")
    write_bytes(tmp_path / "in/test.csv", b"id,text\n1,three\n")
    return tmp_path / "in"


def documents(source: SourceConfig, out: Path) -> list[tuple[int, dict[str, object] | None]]:
    store = TokenStore(build_store(source, out))
    return [
        (store.origin_of(doc_id)[1], store.metadata_of(doc_id)) for doc_id in range(store.documents)
    ]


def loaded(path: Path | str, **settings: object) -> SourceConfig:
    return source_of(Path(path), format="datasets", **settings)


def test_a_folder_is_loaded_by_split(folder: Path, tmp_path: Path) -> None:
    train = loaded(folder, keep_columns=["id"])
    assert documents(train, tmp_path) == [(0, {"id": 7}), (1, {"id": 8})]
    test = loaded(folder, keep_columns=["id"], dataset_split="test")
    assert documents(test, tmp_path) == [(0, {"id": 1})]
    both = loaded(folder, dataset_split="test+train")
    assert len(list_inputs(both)) == 2
    assert len(documents(both, tmp_path)) == 3


def test_a_file_is_loaded_by_its_ending(folder: Path, tmp_path: Path) -> None:
    assert documents(loaded(folder / "test.csv"), tmp_path) == [(0, None)]


def test_changed_content_is_another_input(folder: Path) -> None:
    before = digest_file(list_inputs(loaded(folder))[0].path)
    write_bytes(folder / "train.csv", b"id,text\n7,one\n8,changed\n")
    assert digest_file(list_inputs(loaded(folder))[0].path) != before


def test_the_dataset_of_save_to_disk_is_read_with_and_without_the_format(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(2500)]
    saved = datasets.Dataset.from_dict({"text": texts, "id": list(range(2500))})
    saved.save_to_disk(tmp_path / "saved", num_shards=2)
    for source in (loaded(tmp_path / "saved"), source_of(tmp_path / "saved")):
        inputs = list_inputs(source)
        assert [file.name for file in inputs] == [
            "data-00000-of-00002.arrow",
            "data-00001-of-00002.arrow",
        ]
        assert len(plan_splits(source, inputs, split_bytes=1024)) == 4  # 1000 rows a batch
        assert TokenStore(build_store(source, tmp_path)).documents == 2500


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset_split": "dev"}, r'datasets cannot load it: Unknown split "dev"\. Should be one'),
        ({"dataset_split": "train[:1]"}, "is a slice; only whole splits are read"),
        ({"dataset_config": "fr"}, "BuilderConfig 'fr' not found"),
    ],
)
def test_what_is_not_there_is_one_line(
    folder: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        list_inputs(loaded(folder, **settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["no-such-data", "nobody/no-such-data", "/nowhere/at/all"])
def test_a_name_that_cannot_be_reached_is_one_line(name: str) -> None:
    with pytest.raises(
        SourceError, match=f"path '{name}': datasets cannot load it: Could"
    ) as caught:
        list_inputs(loaded(name))
    assert "\n" not in str(caught.value)


def test_without_the_package_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SourceError, match=r"pip install 'steelyard\[hf\]'"):
        list_inputs(loaded(folder))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"paths": ["a", "b"], "format": "datasets"}, "takes one path"),
        ({"paths": ["a"], "dataset_split": "test"}, "need format = \"datasets\": 'test'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(source: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(
            {
                "tokenizer": {"path": "x"},
                "sources": [{"name": "a", **source}],
                "packing": {"num_micro_batches": 1, "context_length": 8},
                "workload": {"crossover": 1},
            },
            name="run.toml",
        )
