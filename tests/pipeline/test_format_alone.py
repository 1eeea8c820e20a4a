"""docs/FORMAT.md, section 7: any document's tokens from the shards, with DuckDB alone."""

from pathlib import Path

import duckdb
import pytest

from tests.fixture_set import LENGTHS, document_tokens, make_set

PIECES = """
    SELECT
        source[i] AS source,
        epoch[i] AS epoch,
        doc_id[i] AS doc_id,
        doc_start[i] AS doc_start,
        tokens[cu_seqlens[i] + 1 : cu_seqlens[i + 1]] AS ids
    FROM (SELECT *, unnest(range(1, len(cu_seqlens))) AS i FROM read_parquet($shards))
"""
"""DuckDB counts list entries from 1, and its slices hold both ends."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set().write(tmp_path_factory.mktemp("alone") / "set")


def test_documents_are_rebuilt_from_the_shards_without_the_projects_code(directory: Path):
    rows = duckdb.execute(
        f"""
        SELECT source, epoch, doc_id, flatten(list(ids ORDER BY doc_start))
        FROM ({PIECES}) GROUP BY ALL
        """,
        {"shards": f"{directory}/shards/*.parquet"},
    ).fetchall()
    documents = {(source, epoch, doc_id): ids for source, epoch, doc_id, ids in rows}
    tail = duckdb.execute(
        "SELECT source, epoch, doc_id, doc_start, doc_stop FROM read_parquet(?)",
        [f"{directory}/tail.parquet"],
    ).fetchall()
    in_tail = {row[:3] for row in tail}
    assert in_tail
    whole = 0
    for source, (name, lengths) in enumerate(LENGTHS.items()):
        for epoch in range(2 if name == "books" else 1):
            for doc_id, length in enumerate(lengths):
                key = (source, epoch, doc_id)
                expected = list(document_tokens(source, doc_id, length))
                if key in in_tail:
                    for _, _, _, start, stop in (row for row in tail if row[:3] == key):
                        expected[start:stop] = [None] * (stop - start)
                    expected = [token for token in expected if token is not None]
                if length > 1_000:
                    assert key not in documents  # not selected
                else:
                    assert documents.get(key, []) == expected, key
                    whole += 1
    assert whole == 2 * len(LENGTHS["books"]) + len(LENGTHS["web"]) - 1


def test_manifest_totals_are_what_duckdb_counts(directory: Path):
    placed, rows = duckdb.execute(
        "SELECT sum(len(tokens)), count(*) FROM read_parquet(?)", [f"{directory}/shards/*.parquet"]
    ).fetchall()[0]
    steps = duckdb.execute(
        "SELECT max(cumulative_tokens), sum(tokens) FROM read_parquet(?)",
        [f"{directory}/steps.parquet"],
    ).fetchall()[0]
    assert steps == (placed, placed)
    assert rows == 16
