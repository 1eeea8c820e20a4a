"""A finished set, opened: its configuration, workload model, token stores and parts."""

from __future__ import annotations

from packer.throughput import FLAT, Throughput
from packer.workload import Workload
from pipeline.config import RunConfig
from pipeline.config_file import parse_config
from pipeline.publish import UNFINISHED, WORK, is_unfinished, read_receipts
from pipeline.shard.digests import sha256_file
from pipeline.shard.manifest import Manifest
from pipeline.shard.tables import FormatError
from pipeline.shard.token_store import TokenStore


def check_parts(manifest: Manifest, folders: tuple[str, ...]) -> None:
    """Compare the parts in `folders` with their digests.

    Raises:
        FormatError: one is damaged, or was replaced by a publication that is unfinished.
    """
    for receipt in read_receipts(manifest):
        path = manifest.directory / receipt.path
        if receipt.path.startswith(folders) and sha256_file(path) != receipt.sha256:
            if is_unfinished(manifest.directory):
                raise FormatError(UNFINISHED, path=manifest.directory / WORK / "publish")
            raise FormatError(
                "is damaged: its SHA-256 is not that of files.parquet; steelyard verify names the "
                "row group",
                path=path,
            )


def config_of(manifest: Manifest, segment: int = 0) -> RunConfig:
    """The resolved configuration that a segment was made with.

    What a chain's segments share, such as the tokenizer, is in each.
    """
    own = list(manifest.segments)[segment].config
    return parse_config(dict(manifest.config if own is None else own), name="manifest.json")


def workload_of(manifest: Manifest) -> Workload:
    """The workload model that a set was planned with.

    Raises:
        FormatError: it is of a kind that this version does not know.
    """
    model = manifest.workload
    fields = {"model": model.model, "scale": model.scale, "constant": model.constant}
    try:
        return Workload.from_dict(fields | dict(model.parameters))
    except ValueError as error:
        raise FormatError(str(error), path=manifest.directory / "manifest.json") from error


def stores_of(manifest: Manifest) -> list[TokenStore]:
    """The token stores of a set, in source order, their tables checked."""
    stores = [TokenStore(manifest.store_path(index)) for index in range(len(manifest.sources))]
    for store in stores:
        store.check_tables()
    return stores


def throughput_of(value: object, workload: Workload) -> Throughput:
    """The throughput that a CP degree's entry names: "flat", "profile" or the table itself.

    Raises:
        ValueError: none of them, or a profile that the workload model does not have.
    """
    if value == "flat":
        return FLAT
    if value == "profile":
        if workload.profile is None or workload.profile.throughput is None:
            raise ValueError('throughput is "profile", but the workload model has no such table')
        return workload.profile.throughput
    return Throughput.parse(value)
