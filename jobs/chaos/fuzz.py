"""Random configurations, records and manifests: success or an error that is meant, never a bug."""

from __future__ import annotations

import copy
import json
import random
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jobs.build import build
from jobs.chaos.damage import edited, kept
from jobs.chaos.result import Case
from jobs.chaos.small_set import Met, SmallSet, meet
from jobs.progress import Reporter
from jobs.replan import replan
from pipeline.config import RunConfig
from pipeline.config_file import parse_config
from pipeline.inspect import inspect
from pipeline.publish import WORK
from pipeline.reading.listing import list_inputs
from pipeline.reading.records.read import read_records
from pipeline.reading.splits import plan_splits
from pipeline.report import report
from pipeline.settings.documents import SourceConfig

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 10**6, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.0, 0.5, -0.5,
    1e308, float("inf"), float("nan"), "", "0", "a", "x" * 300, "../../x", "/etc/passwd", "\0",
    "\ud800", "\u6f22", [], [[]], [0], [-1, 2**70], ["a", 1], {}, {"": 0}, {"a": {"b": []}},
)  # fmt: skip


_BYTES = (
    *(b"\0", b"\n", b'"', b"{", b"[" * 2000, b"\xff\xfe"),
    *(b"\\ud800", b"1e999", b"PAR1", b"\xed\xa0\x80"),
)


def mutate(value: Any, draw: random.Random) -> Any:
    """The same JSON-like value with one place in it changed, added or removed."""
    value = copy.deepcopy(value)
    place, key = _place(value, draw)
    how = draw.random()
    if how < 0.15 and isinstance(place, dict):
        del place[key]
    elif how < 0.25 and isinstance(place, dict):
        place[draw.choice(["a", "", "..", key + "_", key.upper()])] = draw.choice(_VALUES)
    elif how < 0.35 and isinstance(place, list):
        place.append(copy.deepcopy(draw.choice([*place, *_VALUES])))
    elif how < 0.6 and isinstance(place[key], int | float) and not isinstance(place[key], bool):
        place[key] = draw.choice([place[key] + 1, place[key] - 1, -place[key], place[key] * 2])
    else:
        place[key] = copy.deepcopy(draw.choice(_VALUES))
    return value


def _place(value: Any, draw: random.Random) -> tuple[Any, Any]:
    """A container that is not empty, anywhere in `value`, and a key or index of it."""
    while True:
        key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if not isinstance(value[key], dict | list) or not value[key] or draw.random() < 0.1:
            return value, key
        value = value[key]


def garble(content: bytes, draw: random.Random) -> bytes:
    """Bytes with a few of them changed, cut out, put twice, or put in."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        start = draw.randrange(len(data) + 1)
        stop = min(len(data), start + draw.choice([1, 1, 2, 8, 100]))
        how = draw.randrange(4)
        if how == 0 and stop > start:
            data[start] ^= 1 << draw.randrange(8)
        elif how == 1:
            del data[start:stop]
        elif how == 2:
            data[start:start] = data[start:stop] * draw.choice([1, 1, 50])
        else:
            data[start:start] = draw.choice(_BYTES)
    return bytes(data)


def fuzz_configs(small: SmallSet, count: int, seed: int, scratch: Path) -> Iterator[Case]:
    """Settings with one to three places changed; what is accepted is built."""
    toml = tomllib.loads((small.root.parent / "corpus" / "run.toml").read_text())
    draw = random.Random(seed)
    for number in range(count):
        document = toml
        for _ in range(draw.randint(1, 3)):
            document = mutate(document, draw)
        document = _bounded(document)

        def parse_and_build(document: Any = document, number: int = number) -> None:
            config = parse_config(document, name="run.toml")
            assert isinstance(config, RunConfig)
            if number % 4 == 0 and config.job.executor == "local" and _is_cheap(config):
                build(config, scratch / f"out-{number}", Reporter(quiet=True))

        yield _judged("configuration fuzzed", meet(parse_and_build), lambda d=document: repr(d))


def _bounded(document: Any) -> Any:
    """The same settings, but never on Ray."""
    job = document.get("job")
    if isinstance(job, dict):
        job.pop("address", None)
        job["executor"] = "local"
    return document


def _is_cheap(config: RunConfig) -> bool:
    """Whether a build takes about a second, stays in its directory, and asks no network."""
    packing = config.packing
    return (
        config.shards.store is None
        and Path(config.tokenizer.path or "").is_absolute()
        and packing.policy != "lookahead"
        and packing.num_micro_batches <= 64
        and packing.context_length <= 1 << 16
        and all(source.max_epochs <= 4 for source in config.sources)
        and all(source.format != "datasets" for source in config.sources)
        and max(config.context_parallel.sizes, default=1) <= 64
    )


def fuzz_records(small: SmallSet, count: int, seed: int, scratch: Path) -> Iterator[Case]:
    """Files of records with bytes changed: read, rejected, or refused in a line."""
    corpus = small.root.parent / "corpus"
    draw = random.Random(seed)
    sources = [
        (corpus / "lines.jsonl", {"id_column": "id", "keep_columns": ("id",)}),
        (corpus / "lines.jsonl", {}),
        (corpus / "more.jsonl.gz", {}),
        (corpus / "rows.parquet", {}),
        (corpus / "tree" / "0.txt", {}),
    ]
    for _ in range(count):
        path, settings = draw.choice(sources)
        file = scratch / path.name
        content = path.read_bytes()
        file.write_bytes(garble(content[: 20_000 if path.suffix == ".jsonl" else None], draw))
        source = SourceConfig.model_validate({"name": "s", "paths": (str(file),), **settings})

        def read(source: SourceConfig = source) -> None:
            for split in plan_splits(source, list_inputs(source), split_bytes=8192):
                for _ in read_records(split, source):
                    pass

        yield _judged("record fuzzed", meet(read), lambda path=path: path.name)


def fuzz_manifests(small: SmallSet, count: int, seed: int) -> Iterator[Case]:
    """Manifests with one to three fields changed and a digest that fits."""
    document = json.loads((small.root / "manifest.json").read_bytes())
    draw = random.Random(seed)
    uses: tuple[Callable[[], Any], ...] = (
        lambda: _check(small.read()),
        lambda: _check([small.verified()]),
        lambda: report(small.root),
        lambda: inspect(small.root, step=0, slot=0, text=20),
        lambda: replan(small.root, [8], None, Reporter(quiet=True)),
        lambda: build(small.config, small.root, Reporter(quiet=True)),
    )
    for _ in range(count):
        changed = document
        for _ in range(draw.randint(1, 3)):
            changed = mutate(changed, draw)
        use = draw.choice(uses)

        def put(there: dict[str, Any], changed: Any = changed) -> None:
            there.clear()
            there.update(changed)

        with (
            edited(small.root, put),
            kept(small.root / "files.parquet"),
            kept(small.root / "row_groups.parquet"),
        ):
            met = meet(use)
            shutil.rmtree(small.root / "cp=8", ignore_errors=True)  # replan's
            shutil.rmtree(small.root / WORK, ignore_errors=True)
        yield _judged("manifest fuzzed", met, lambda c=changed: _difference(document, c))


def _check(met: list[Met]) -> None:
    bugs = [one.line for one in met if one.status is None]
    if bugs:
        raise AssertionError(bugs[0])


def _difference(old: Any, new: Any, where: str = "") -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(old.keys() | new.keys())
        found = (_difference(old.get(n), new.get(n), f"{where}.{n}") for n in names)
        return "; ".join(text for text in found if text)
    return "" if repr(old) == repr(new) else f"{where}={new!r:.60}"


def _judged(fault: str, met: Met, describe: Callable[[], str]) -> Case:
    bug = met.status is None
    return Case(
        fault=fault,
        done=describe() if bug else "",
        held=not bug,
        seen=met.line,
        figures={"refused": int(met.status in (1, 2)), "taken": int(met.status == 0)},
    )
