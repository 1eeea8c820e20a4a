"""One digest of what a set's first steps consist of."""

from __future__ import annotations

from pipeline.shard import schema
from pipeline.shard.digests import sha256_bytes
from pipeline.shard.manifest import Manifest
from pipeline.shard.tables import FormatError, NotInSet, read_table


def steps_digest(manifest: Manifest, stop_step: int) -> str:
    """`Reader.steps_digest` of a manifest.

    Raises:
        NotInSet: there are fewer steps.
        FormatError: the table of files is damaged, or lists no shards.
    """
    if not 0 <= stop_step <= manifest.num_steps:
        raise NotInSet(
            f"step {stop_step} is not in 0..{manifest.num_steps} of {manifest.directory}"
        )
    path = manifest.directory / "files.parquet"
    files = read_table(path, schema.FILES, sha256=str(manifest.digests["files.parquet"]))
    columns = (files[name].to_pylist() for name in ("path", "content_sha256"))
    content = dict(zip(*columns, strict=True))
    parts = manifest.part_of(stop_step - 1) + 1 if stop_step else 0
    found = [content.get(f"shards/{schema.part_name(part)}.parquet") for part in range(parts)]
    if None in found:
        raise FormatError(f"lists no shards for part {found.index(None)}", path=path)
    return sha256_bytes("".join(map(str, found)).encode())
