"""The configuration rejects nonsense at the edge and says what would be right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from packer.context_parallel import STRATEGIES
from packer.context_parallel.options import CANDIDATES
from packer.context_parallel.strategies import DEFAULT
from packer.profile import Profile, Table
from packer.throughput import FLAT, PUBLISHED, Throughput
from packer.workload import Workload
from pipeline.config import ConfigError, RunConfig, fingerprint
from pipeline.config_file import load_config, parse_config
from pipeline.planning.cp_options import cp_options, describe_options, options_of
from pipeline.settings.context_parallel import CPCandidate, CPStrategy

SMALL = """
[tokenizer]
path = "tokenizer.json"

[[sources]]
name = "a"
paths = ["a.jsonl"]

[packing]
num_micro_batches = 4
context_length = 1000

[workload]
crossover = 100
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(SMALL)
    return path


def test_defaults_are_resolved(config_file: Path) -> None:
    config = load_config(config_file)
    assert config.packing.bound == 1250
    assert config.packing.policy == "lookahead"
    assert config.at_source_end == "drop"  # no weights: every document is used


def test_settings_know_the_strategies_that_plans_are_written_with(config_file: Path) -> None:
    assert set(get_args(CPStrategy)) == set(STRATEGIES)
    assert get_args(CPCandidate) == CANDIDATES
    settings = load_config(config_file).context_parallel
    assert (settings.strategy, settings.candidates) == (DEFAULT, CANDIDATES)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_options_stand_in_the_manifest_and_come_back(strategy: str, config_file: Path) -> None:
    more = {"padded_head_tail": "pad_to=6,", "adaptive": "candidates=['mixed','per_sequence'],"}
    table = f"{{strategy='{strategy}', {more.get(strategy, '')} kv_exchange=0.5}}"
    settings = load_config(config_file, (f"context_parallel={table}",)).context_parallel
    options, workload = cp_options(settings, 1250), Workload(crossover=100)
    assert options.max_tokens == 1250
    fields = json.loads(json.dumps(describe_options(strategy, options, workload, 4)))
    assert fields["strategy"] == strategy
    assert fields.get("pad_multiple") == (24 if strategy == "padded_head_tail" else None)
    found = options_of(fields, workload)
    assert found.throughput == options.throughput_of(workload) == PUBLISHED
    assert found.kv_exchange == 0.5
    assert found.candidates == settings.candidates


def test_throughput_is_named_where_it_stands_elsewhere(config_file: Path) -> None:
    table = Table(tokens=(10, 100), time=(10.0, 100.0))
    grid = Throughput(query_tokens=(1,), key_tokens=(1, 2), achieved=((1.0, 2.0),))
    profile = Profile(linear=table, attention=table, throughput=grid)
    for name, workload, expected, written in (
        ("default", Workload(crossover=None, profile=profile), grid, "profile"),
        ("flat", Workload(crossover=None, profile=profile), FLAT, "flat"),
        ("default", Workload(crossover=9), PUBLISHED, PUBLISHED.as_dict()),
    ):
        config = load_config(config_file, (f"context_parallel.throughput={name}",))
        options = cp_options(config.context_parallel, 0)
        fields = describe_options("mixed", options, workload, 2)
        assert fields["throughput"] == written
        assert options_of(fields, workload).throughput == expected


def test_with_weights_the_stream_stops_so_that_the_mixture_holds(config_file: Path) -> None:
    assert load_config(config_file, ("sources.0.weight=2.0",)).at_source_end == "stop"


def test_a_source_without_policies_has_those_of_all(config_file: Path) -> None:
    config = load_config(
        config_file, ("documents.longer_than_context=drop", "sources.0.min_tokens=9")
    )
    documents = config.documents_of(config.sources[0])
    assert (documents.longer_than_context, documents.min_tokens) == ("drop", 9)
    config = load_config(config_file, ("sources.0.longer_than_context=error",))
    documents = config.documents_of(config.sources[0])
    assert (documents.longer_than_context, documents.min_tokens) == ("error", 1)


@pytest.mark.parametrize(("given", "kept"), [("2", "2"), ("2.0", "2"), ("1.5", "1.5")])
def test_whole_epochs_are_integers(config_file: Path, given: str, kept: str) -> None:
    config = load_config(config_file, (f"sources.0.max_epochs={given}",))
    assert repr(config.sources[0].max_epochs) == kept


def test_overrides_are_toml_values_and_bare_words(config_file: Path) -> None:
    config = load_config(
        config_file, ("packing.max_tokens=2000", "packing.policy=reorder", "mixture.seed=7")
    )
    assert (config.packing.bound, config.packing.policy, config.mixture.seed) == (
        2000,
        "reorder",
        7,
    )


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("packing.contxt_length=5", ["packing.contxt_length", "did you mean 'context_length'"]),
        ("sources.0.wieght=1.0", ["sources.0.wieght", "did you mean 'weight'"]),
        ("workload.modle_config=x", ["did you mean 'model_config'"]),
        ("zzz=1", ["zzz", "known here", "tokenizer"]),
        ("packing.context_length='long'", ["packing.context_length", "integer"]),
        ("packing.max_tokens=999", ["999", "at least context_length 1000"]),
        ("workload.model_config='m.json'", ["exactly one of crossover, model_config and profile"]),
        ("workload.profile='p.json'", ["exactly one of crossover, model_config and profile"]),
        (
            "workload.hardware={gemm_tflops=1.0, attention_tflops=1.0}",
            ["workload", "hardware needs model_config"],
        ),
        (
            "workload.hardware={gemm_tflops=1.0, attention_tflops=1.0, tp_size=2}",
            ["workload.hardware", "tp_size is 2 and tp_gb_per_s None", "need a bandwidth"],
        ),
        (
            "workload.hardware={gemm_tflops=0.0}",
            ["hardware.gemm_tflops", "greater than 0"],
        ),
        ("packing.global_batches=9", ["max_displacement is 16", "at least 17"]),
        ("context_parallel.sizes=[1,2]", ["distinct and 2 to 65536"]),
        ("context_parallel.strategy='whole_document'", ["context_parallel.strategy", "'mixed'"]),
        ("context_parallel.kv_exchange=-1", ["context_parallel.kv_exchange", "equal to 0"]),
        ("context_parallel.pad_to=64", ['strategy "adaptive" pads nothing', "padded_head_tail"]),
        (
            "context_parallel={strategy='mixed', candidates=['mixed']}",
            ['strategy "mixed" has no choice', 'strategy = "adaptive"'],
        ),
        ("context_parallel.candidates=['mixed','mixed']", ["must be distinct"]),
        ("context_parallel.candidates=[]", ["context_parallel.candidates", "at least 1 item"]),
        ("context_parallel.candidates=['adaptive']", ["candidates", "'per_document' or 'mixed'"]),
        ("context_parallel.throughput='peak'", ["'default' or 'flat'"]),
        ("parallel.dp_size=3", ["dp_size 3 does not divide", "4"]),
        ("parallel.virtual_stages=2", ["parallel", "nothing to interleave"]),
        ("parallel.coupling='fsdp'", ["parallel.coupling", "'gradient_sync' or 'lockstep'"]),
        ("parallel.stage_shares=[1,2]", ["parallel", "2 stage_shares for 1 stages"]),
        ("parallel.backward_factor=0", ["parallel", "backward_factor 0.0 must be 1/64 to 64"]),
        ("parallel.micro_batch_order='up'", ["no micro_batch_order 'up'", "identity, middle"]),
        ("sources.0.max_epochs=0", ["sources.0.max_epochs", "greater than 0"]),
        ("sources.0.max_epochs='twice'", ["sources.0.max_epochs", "number"]),
        ("sources.0.min_tokens=0", ["sources.0.min_tokens", "greater than or equal to 1"]),
        ("documents.longer_than_contex='cut'", ["did you mean 'longer_than_context'"]),
        ("documents.longer_than_context='split'", ["'cut', 'truncate', 'drop' or 'error'"]),
        ("sources.0.name='../a'", ["sources.0.name"]),
        ("tokenizer.vocab_size=9", ["tokenizer: give exactly one of path and vocab_size"]),
        ("sources.0.ends='as_given'", ["sources.0", "sources that bring tokens"]),
        ("packing", ["expected table.key=value"]),
        ("sources.5.name=b", ["no table '5'"]),
    ],
)
def test_mistakes_say_what_is_allowed(config_file: Path, override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(config_file, (override,))
    for word in words:
        assert word in str(caught.value)


def test_missing_keys_and_broken_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(ConfigError, match="No such file"):
        load_config(path)
    path.write_text("[tokenizer")
    with pytest.raises(ConfigError, match="not TOML"):
        load_config(path)
    path.write_text("[tokenizer]\npath = 'x'\n")
    with pytest.raises(ConfigError, match="sources: Field required"):
        load_config(path)


def test_all_sources_are_weighted_or_none(config_file: Path) -> None:
    text = config_file.read_text() + '\n[[sources]]\nname = "b"\npaths = ["b"]\nweight = 1.0\n'
    config_file.write_text(text)
    with pytest.raises(ConfigError, match="every source a weight, or none"):
        load_config(config_file)


def test_a_dumped_configuration_reads_back_the_same(config_file: Path) -> None:
    config = load_config(config_file, ("sources.0.max_epochs=3", "documents.min_tokens=2"))
    dumped = config.model_dump(mode="json", by_alias=True, exclude={"job"})
    again = parse_config(dumped, name="manifest")
    assert isinstance(again, RunConfig)
    assert again == config


TOKENS = SMALL.replace('path = "tokenizer.json"', "vocab_size = 50_000")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("", ["source 'a' holds text, which needs tokenizer.path"]),
        ('token_column = "ids"\nends = "add"', ["source 'a' has ends", "needs tokenizer.path"]),
        ('token_column = "ids"\ntext_column = "text"', ["text_column or token_column, not both"]),
        ('token_column = "ids"\nformat = "jsonl"', ["for Parquet and Arrow", "jsonl"]),
        ('token_column = "ids"\nformat = "megatron"', ["for Parquet and Arrow", "megatron"]),
        ('token_column = ""', ["sources.0.token_column"]),
        ('token_column = "ids"\nkeep_columns = ["id"]', ["id_column are for sources of text"]),
    ],
)
def test_sources_without_a_vocabulary_bring_tokens(
    config_file: Path, settings: str, words: list[str]
) -> None:
    config_file.write_text(TOKENS.replace('paths = ["a.jsonl"]', f'paths = ["a"]\n{settings}'))
    with pytest.raises(ConfigError) as caught:
        load_config(config_file)
    for word in words:
        assert word in str(caught.value)


def test_no_ends_are_named_where_there_is_no_vocabulary(config_file: Path) -> None:
    config_file.write_text(TOKENS)
    for setting in ("add_bos=true", "eos_token='x'"):
        with pytest.raises(ConfigError, match="need path, a vocabulary"):
            load_config(config_file, (f"tokenizer.{setting}", "sources.0.format=megatron"))


@pytest.mark.parametrize("setting", ['format = "megatron"', 'token_column = "ids"'])
def test_settings_of_token_sources_read_back_the_same(config_file: Path, setting: str) -> None:
    config_file.write_text(TOKENS.replace('paths = ["a.jsonl"]', f'paths = ["a"]\n{setting}'))
    config = load_config(config_file)
    dumped = config.model_dump(mode="json", by_alias=True, exclude={"job"})
    assert parse_config(dumped, name="manifest") == config
    assert config.sources[0].given_ends == "as_given"


def test_fingerprints_do_not_depend_on_the_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": [2, 3]}) == fingerprint({"b": [2, 3], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_a_wrong_entry_of_a_list_is_one_mistake(config_file: Path) -> None:
    config_file.write_text(
        config_file.read_text().replace("[[sources]]", "[[sources]]\nweight = 0")
    )
    with pytest.raises(ConfigError) as caught:
        load_config(config_file)
    assert str(caught.value).count("\n") == 0
    assert "sources.0.weight" in str(caught.value)
