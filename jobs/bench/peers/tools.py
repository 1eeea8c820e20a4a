"""The tools of the comparison: what each needs, how it runs and what it leaves behind."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.settings.documents import TokenizerConfig

_TOKENIZERS = "tokenizers==0.23.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another tool, in an environment of its own.

    `output` is a pattern of the files of ids below its output directory and `dtype` their type;
    "parquet" is a column `ids`.
    """

    name: str
    does: str
    script: str
    requirements: tuple[str, ...]
    package: str
    output: str
    dtype: str
    limit_s: float = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """Our own job with one engine: the tokenize stage alone, or the whole build."""

    name: str
    does: str
    what: str
    engine: str
    limit_s: float = 1800.0


PEERS = (
    Peer(
        name="datatrove",
        does="`DocumentTokenizer`, 2 tasks, no shuffling",
        script="datatrove_run.py",
        requirements=("datatrove[io,processing]==0.10.1", _TOKENIZERS, "orjson==3.13.0"),
        package="datatrove",
        output="tokens/*.ds",
        dtype="uint32",
    ),
    Peer(
        name="datasets",
        does="`map(batched=True, num_proc=2)`, `to_parquet`",
        script="datasets_run.py",
        requirements=("datasets==5.2.0", _TOKENIZERS),
        package="datasets",
        output="*.parquet",
        dtype="parquet",
    ),
    Peer(
        name="megatron",
        does="`IndexedDatasetBuilder` fed by 2 processes of `tokenizers` in batches; "
        "tools/preprocess_data.py is in no package",
        script="megatron_run.py",
        requirements=("megatron-core==0.16.1", "torch==2.13.0", "numpy==2.4.6", _TOKENIZERS),
        package="megatron-core",
        output="whole.bin",
        dtype="int32",
    ),
    Peer(
        name="dolma",
        does="`dolma tokens --processes 2`; it strips white space at documents' ends",
        script="dolma_run.py",
        requirements=("dolma==1.2.1", "pyarrow<21", "lxml_html_clean"),
        package="dolma",
        output="tokens/**/*.npy",
        dtype="uint32",
    ),
)


def ours(names: tuple[str, ...]) -> tuple[Ours, ...]:
    """Our rows: the tokenize stage with each of the engines, and the build with the default."""
    default = TokenizerConfig.model_fields["engine"].default
    stages = tuple(
        Ours(
            name=f"tokenize-{engine}",
            does=f'the tokenize stage, `tokenizer.engine = "{engine}"`'
            + (" (the default)" if engine == default else ""),
            what="tokenize",
            engine=engine,
        )
        for engine in names
    )
    build = Ours(
        name="build",
        does="`steelyard build`: tokenize, pack, two CP degrees, shards",
        what="build",
        engine=default,
    )
    return (*stages, build)
