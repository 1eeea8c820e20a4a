"""Reading torch's checkpoints without running what is in them.

Torch writes a checkpoint's index and its plain values as pickles and loads them as such; a pickle
may call anything. Here the index may name nothing but what torch puts there, and values are loaded
as weights are.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    ("pathlib", "PosixPath"),
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
}


class SafeReader(FileSystemReader):
    """As torch's reader of a directory, with an index that names no code."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index of a checkpoint.

        Raises:
            UnpicklingError: it holds what no checkpoint of ours does.
        """
        path = self._get_metadata_path(kwargs.get("rank"))
        with self.fs.create_stream(path, "rb") as file:
            metadata = _Index(file).load()
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class SafePlanner(DefaultLoadPlanner):
    """As torch's planner, with values that are numbers, strings, tensors and lists of such."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)  # refuses code; what passes is loaded as ever
        value.seek(0)
        super().load_bytes(read_item, value)


class _Index(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not dtype and (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"holds {module}.{name}, which no checkpoint of ours does")
        return super().find_class(module, name)
