"""Opening Parquet files, wherever they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files.storage import open_random
from pipeline.reading.source_error import SourceError

_READ_BYTES = 1 << 20


@contextmanager
def opened(path: str) -> Iterator[pq.ParquetFile]:
    """A Parquet file for reading.

    Raises:
        SourceError: it is none.
    """
    with ExitStack() as stack:
        try:
            source = stack.enter_context(open_random(path))
            file = pq.ParquetFile(source, buffer_size=_READ_BYTES)
        except MemoryError:  # Arrow's is an ArrowException too, and says nothing of the file
            raise
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{path} cannot be read as Parquet: {error}") from error
        yield file
