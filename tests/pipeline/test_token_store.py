from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shard import schema, token_store
from pipeline.shard.token_store import StoreError, TokenStore
from tests.corpora import (
    build_store,
    source_of,
    texts_of_lengths,
    write_jsonl,
)

LENGTHS = [2, 3, 40_000, 5, 9, 300, 70, 2, 2, 2, 2_000, 11] * 3


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of several parts, one of them without a document and one of several blocks."""
    directory = tmp_path_factory.mktemp("store")
    write_jsonl(directory / "in/a.jsonl", texts_of_lengths(LENGTHS))
    return build_store(source_of(directory / "in"), directory, split_bytes=15_000)


@pytest.fixture
def store(path: Path) -> TokenStore:
    return TokenStore(path)


@pytest.fixture
def damaged(path: Path, tmp_path: Path) -> Callable[[str, int], Path]:
    """A copy of the store with one bit of one file flipped."""

    def damage(name: str, at: int) -> Path:
        for file in path.rglob("*"):
            if file.is_file():
                write_raw(tmp_path / "store" / file.relative_to(path), file.read_bytes())
        content = bytearray((path / name).read_bytes())
        content[at] ^= 4
        write_raw(tmp_path / "store" / name, bytes(content))
        return tmp_path / "store"

    return damage


def write_raw(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


class TestReading:
    def test_the_store_is_what_this_file_supposes(self, store: TokenStore) -> None:
        assert store.lengths.tolist() == LENGTHS
        assert (store.documents, store.tokens) == (len(LENGTHS), sum(LENGTHS))
        assert 0 in store.parts.documents  # a split inside a long line
        assert store.parts.tokens.max() * 2 > schema.BLOCK_BYTES
        assert store.name == "corpus"
        assert store.directory.name == f"corpus-{store.key[:16]}"

    def test_nothing_read_can_be_written_to(self, store: TokenStore) -> None:
        assert not store.lengths.flags.writeable
        assert not store.part_offsets(0).flags.writeable

    def test_every_document_is_in_its_part_at_its_offset(self, store: TokenStore) -> None:
        parts = store.part_of(np.arange(store.documents))
        assert np.bincount(parts, minlength=len(store.parts)).tolist() == (
            store.parts.documents.tolist()
        )
        for part in range(len(store.parts)):
            first = store.parts.first_doc_id[part]
            lengths = LENGTHS[first : first + store.parts.documents[part]]
            assert store.part_offsets(part).tolist() == [0, *np.cumsum(lengths).tolist()]

    PIECES = st.lists(
        st.tuples(st.integers(0, len(LENGTHS) - 1), st.floats(0, 1), st.floats(0, 1)), max_size=30
    )

    @given(pieces=PIECES, in_order=st.booleans(), short=st.sampled_from([0, 64, 1 << 20]))
    @settings(max_examples=60, deadline=None)
    def test_gathered_pieces_are_slices_of_documents_in_the_order_asked_for(
        self,
        path: Path,
        pieces: list[tuple[int, float, float]],
        in_order: bool,
        short: int,
    ) -> None:
        store = TokenStore(path)
        asked = [
            (doc_id, *sorted((int(a * LENGTHS[doc_id]), int(b * LENGTHS[doc_id]))))
            for doc_id, a, b in (sorted(pieces) if in_order else pieces)
        ]
        columns = np.array(asked, np.int64).reshape(-1, 3).T
        columns.setflags(write=False)
        slices = [self.text_tokens(path, doc_id)[start:stop] for doc_id, start, stop in asked]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(token_store, "_SHORT_TOKENS", short)  # both ways of copying
            found = store.gather(*columns)
        assert found.dtype == np.uint16
        assert found.tolist() == [token for tokens in slices for token in tokens]

    @staticmethod
    def text_tokens(path: Path, doc_id: int) -> list[int]:
        """A document's ids straight from the part files, which lie end to end."""
        files = sorted((path / "parts").glob("*.tokens"))
        everything = np.frombuffer(b"".join(file.read_bytes() for file in files), "<u2")
        first = sum(LENGTHS[:doc_id])
        return everything[first : first + LENGTHS[doc_id]].tolist()

    def test_all_documents_in_order_are_the_parts_end_to_end(self, store: TokenStore) -> None:
        doc_id = np.arange(store.documents)
        found = store.gather(doc_id, np.zeros_like(doc_id), store.lengths.astype(np.int64))
        files = sorted((store.directory / "parts").glob("*.tokens"))
        assert found.tobytes() == b"".join(file.read_bytes() for file in files)

    def test_neighbours_in_the_store_that_are_apart_in_the_order_stay_apart(
        self, store: TokenStore, path: Path
    ) -> None:
        doc_id = np.array([0, store.documents - 1, 1])
        assert len(set(store.part_of(doc_id).tolist())) == 2
        lengths = store.lengths[doc_id].astype(np.int64)
        found = store.gather(doc_id, np.zeros_like(doc_id), lengths)
        expected = [token for each in doc_id for token in self.text_tokens(path, int(each))]
        assert found.tolist() == expected

    def test_a_part_of_a_document_can_be_read(self, store: TokenStore) -> None:
        whole = store.tokens_of(5)
        assert len(whole) == LENGTHS[5]
        assert store.tokens_of(5, 10, 20).tolist() == whole[10:20].tolist()
        assert store.tokens_of(5, 290).tolist() == whole[290:].tolist()

    @pytest.mark.parametrize(
        ("doc_id", "start", "stop", "message"),
        [
            (-1, 0, 1, "no document -1; the store has 36"),
            (36, 0, 1, "no document 36"),
            (0, 0, 3, "tokens 0 to 3 of document 0 were asked for; it has 2"),
            (0, -1, 1, "tokens -1 to 1"),
            (0, 2, 1, "tokens 2 to 1"),
        ],
    )
    def test_what_is_not_there_is_refused(
        self, store: TokenStore, doc_id: int, start: int, stop: int, message: str
    ) -> None:
        columns = np.array([[1, doc_id], [0, start], [1, stop]])
        with pytest.raises(StoreError, match=message):
            store.gather(*columns)

    def test_it_travels_to_a_worker_as_its_path(self, store: TokenStore) -> None:
        sent = pickle.dumps(store)
        assert len(sent) < 1000
        assert pickle.loads(sent).tokens_of(3).tolist() == store.tokens_of(3).tolist()

    def test_more_parts_than_are_kept_open_can_be_read(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(token_store, "_OPEN_PARTS", 1)
        store = TokenStore(path)
        doc_id = np.array([30, 0, 31, 1])
        found = store.gather(doc_id, np.zeros(4, np.int64), np.ones(4, np.int64))
        assert found.tolist() == [self.text_tokens(path, each)[0] for each in doc_id]


class TestIntegrity:
    def test_a_whole_store_passes_every_check(self, store: TokenStore) -> None:
        store.check_tables()
        for part in range(len(store.parts)):
            store.verify_part(part)

    def test_a_flipped_bit_is_found_in_its_block(
        self, store: TokenStore, damaged: Callable[[str, int], Path]
    ) -> None:
        part = int(store.parts.tokens.argmax())
        name = f"parts/{part:05d}.tokens"
        at = schema.BLOCK_BYTES + 7
        copy = TokenStore(damaged(name, at))
        with pytest.raises(StoreError, match=rf"{name}: block 1 \(bytes 65536 to "):
            copy.check_blocks(part)
        with pytest.raises(StoreError, match="block 1"):
            copy.verify_part(part)

    @pytest.mark.parametrize("ending", ["index.parquet", "blocks.parquet"])
    def test_a_flipped_bit_in_a_part_table_is_found_on_reading(
        self, damaged: Callable[[str, int], Path], ending: str
    ) -> None:
        store = TokenStore(damaged(f"parts/00000.{ending}", 50))
        with pytest.raises(StoreError, match=rf"00000\.{ending} is not the file of parts"):
            store.verify_part(0)
        if ending == "index.parquet":
            with pytest.raises(StoreError, match="is not the file of parts"):
                store.tokens_of(0)

    @pytest.mark.parametrize("name", ["inputs.parquet", "parts.parquet"])
    def test_a_flipped_bit_in_a_small_table_is_found_on_opening(
        self, damaged: Callable[[str, int], Path], name: str
    ) -> None:
        with pytest.raises(StoreError, match=f"{name} is not the file of source.json"):
            TokenStore(damaged(name, 9))

    @pytest.mark.parametrize("name", ["lengths.u32", "rejects.parquet"])
    def test_a_flipped_bit_in_a_table_of_any_size_is_found_when_asked(
        self, damaged: Callable[[str, int], Path], name: str
    ) -> None:
        store = TokenStore(damaged(name, 9))
        with pytest.raises(StoreError, match=f"{name} is not the file of source.json"):
            store.check_tables()
        if name == "lengths.u32":
            with pytest.raises(StoreError, match="does not agree with lengths"):
                store.verify_part(0)

    @pytest.mark.parametrize("name", ["parts/00000.tokens", "lengths.u32"])
    def test_a_file_that_is_cut_short_is_found_on_opening_it(
        self, damaged: Callable[[str, int], Path], name: str
    ) -> None:
        directory = damaged("source.json", 0)
        write_raw(directory / "source.json", self.mended(directory))
        write_raw(directory / name, (directory / name).read_bytes()[:-1])
        with pytest.raises(StoreError, match=f"{name} has .* bytes, not"):
            TokenStore(directory).tokens_of(0)

    @staticmethod
    def mended(directory: Path) -> bytes:
        return b"{" + (directory / "source.json").read_bytes()[1:]

    def test_another_version_is_refused(self, damaged: Callable[[str, int], Path]) -> None:
        directory = damaged("source.json", 0)
        with pytest.raises(StoreError, match="is not JSON"):
            TokenStore(directory)
        newer = self.mended(directory).replace(b'"version": 1', b'"version": 2')
        write_raw(directory / "source.json", newer)
        with pytest.raises(StoreError, match="version 2; this reader knows 'steelyard-store', v"):
            TokenStore(directory)


class TestPieces:
    """Ids where they lie, and the token after each piece."""

    def test_pieces_come_in_the_order_asked_for_with_the_tokens_after_them(
        self, store: TokenStore
    ) -> None:
        documents = [store.tokens_of(doc_id).tolist() for doc_id in range(store.documents)]
        rng = np.random.default_rng(3)
        ends = cut = 0
        for most_taken in (1 << 62, 50):
            doc_id = rng.permutation(store.documents)
            length = np.minimum([len(documents[number]) for number in doc_id], most_taken)
            start = rng.integers(0, length)
            stop = np.where(rng.random(len(doc_id)) < 0.5, length, rng.integers(start, length) + 1)
            pieces, last = store.pieces(doc_id, start, stop, most_taken=most_taken)
            columns = (doc_id, start, stop, pieces, last, length)
            for number, first, end, piece, label, taken in zip(*columns, strict=True):
                assert piece.tolist() == documents[number][first:end]
                assert piece.dtype == store.dtype
                assert not piece.flags.writeable
                assert label == (documents[number][end] if end < taken else -100)
                ends, cut = ends + (label == -100), cut + (label != -100)
        assert min(ends, cut) > 10

    @pytest.mark.parametrize(("start", "stop"), [(-1, 1), (2, 1), (0, 3)])
    def test_tokens_that_a_document_does_not_have_are_refused(
        self, store: TokenStore, start: int, stop: int
    ) -> None:
        columns = (np.array([value], np.int64) for value in (0, start, stop))
        with pytest.raises(StoreError, match=f"tokens {start} to {stop} of document 0.*it has 2"):
            store.pieces(*columns, most_taken=9)

    def test_a_part_is_announced_before_it_is_mapped(self, path: Path) -> None:
        opened: list[int] = []
        store = TokenStore(path, on_open=lambda _, part: opened.append(part))
        assert not opened
        store.tokens_of(0)
        store.tokens_of(1)
        assert opened == [int(store.part_of(np.array([0]))[0])]
