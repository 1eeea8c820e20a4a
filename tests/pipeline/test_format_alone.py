"""docs/FORMAT.md followed with DuckDB alone: documents, exchange lists, the padded layout."""

from pathlib import Path

import duckdb

from pipeline.shard.rank_views import rank_view
from pipeline.shard.reader import open_shards
from tests.changes import padded
from tests.fixture_contents import LENGTHS, document_tokens
from tests.fixture_set import make_set

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


CHUNKS = """
    WITH chunk AS (
        SELECT
            step, slot, i, cp_rank[i] AS cp_rank, piece[i] AS piece, start[i] AS start,
            stop[i] AS stop
        FROM (SELECT *, unnest(range(1, len(piece) + 1)) AS i FROM read_parquet($cp))
    ), pieces AS (
        SELECT
            step, slot, i - 1 AS piece, cu_seqlens[i] AS first,
            cu_seqlens[i + 1] - cu_seqlens[i] AS length
        FROM (SELECT *, unnest(range(1, len(cu_seqlens))) AS i FROM read_parquet($plan))
    )
"""
"""Chunks with their number in the row, and pieces with their place in the micro-batch."""
EXCHANGE = f"""
    {CHUNKS}, reach AS (
        SELECT step, slot, cp_rank AS reader, piece, max(stop) AS reach
        FROM chunk WHERE piece >= 0 GROUP BY ALL
    )
    SELECT
        step, slot, cp_rank, reader,
        flatten(list(range(first + start, first + least(stop, reach)) ORDER BY i))
    FROM chunk JOIN reach USING (step, slot, piece) JOIN pieces USING (step, slot, piece)
    WHERE reader <> cp_rank AND start < reach
    GROUP BY ALL
"""
LAYOUT = f"""
    {CHUNKS}, padded AS (
        SELECT *, $multiple * ceil(length / $multiple)::BIGINT AS size FROM pieces
    ), placed AS (
        SELECT
            *, sum(size) OVER earlier - size AS begin,
            sum(size - length) OVER earlier - (size - length) AS first_pad
        FROM padded WINDOW earlier AS (PARTITION BY step, slot ORDER BY piece)
    ), part AS (
        SELECT
            chunk.step, chunk.slot, cp_rank, i, stop - start AS count,
            begin + start + CASE WHEN chunk.piece < 0 THEN length - first_pad ELSE 0 END AS place
        FROM chunk JOIN placed ON chunk.step = placed.step AND chunk.slot = placed.slot AND (
            chunk.piece = placed.piece OR chunk.piece = -1
            AND start >= first_pad AND start < first_pad + size - length
        )
    )
    SELECT
        step, slot, cp_rank,
        flatten(list(range(place::BIGINT, (place + count)::BIGINT) ORDER BY i))
    FROM part GROUP BY ALL
"""


def test_exchange_lists_follow_from_the_plan_alone(directory: Path):
    reader = open_shards(directory)
    files = {"cp": f"{directory}/cp=2/*.parquet", "plan": f"{directory}/plan/*.parquet"}
    found = {
        (step, slot, owner, asks): places
        for step, slot, owner, asks, places in duckdb.execute(EXCHANGE, files).fetchall()
    }
    expected = {}
    for step in range(reader.num_steps):
        for slot in range(2):
            whole, plan = reader.micro_batch(step, slot), reader.chunks(step, slot, 2)
            for owner in range(2):
                table = reader.exchange(step, slot, cp_rank=owner, cp_size=2)
                places = rank_view(whole, plan, owner, 2).query_index[table.send_index].tolist()
                if places:
                    expected[step, slot, owner, 1 - owner] = places
    assert found == expected
    assert len(expected) > 10


def test_the_padded_layout_follows_from_the_plan_alone(tmp_path: Path):
    data = make_set()
    padded(12)(data)
    directory = data.write(tmp_path)
    reader = open_shards(directory)
    files = {"cp": f"{directory}/cp=2/*.parquet", "plan": f"{directory}/plan/*.parquet"}
    found = {
        (step, slot, rank): places
        for step, slot, rank, places in duckdb.execute(LAYOUT, files | {"multiple": 12}).fetchall()
    }
    expected = {
        (view.step, view.slot, cp_rank): view.padded_index.tolist()
        for cp_rank in range(2)
        for step in range(reader.num_steps)
        for view in reader.padded_micro_batches(
            step, dp_rank=0, dp_size=1, cp_rank=cp_rank, cp_size=2
        )
    }
    assert found == expected
    assert len(expected) == 32
