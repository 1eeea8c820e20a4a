"""Compressed files: several members, broken ones, damaged ones."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from pathlib import Path

import pytest
import zstandard

from tests.corpora import source_of, write_bytes, write_jsonl
from tests.pipeline.found_records import COMPRESSED, read


class TestCompressed:
    TEXTS = tuple(f"text {i} {random.Random(i).getrandbits(512):x}" for i in range(2500))

    @pytest.mark.parametrize("name", COMPRESSED)
    def test_what_was_read_before_a_file_breaks_off_is_kept(
        self, tmp_path: Path, name: str
    ) -> None:
        path = write_jsonl(tmp_path / name, self.TEXTS)
        whole = path.read_bytes()
        for kept in (len(whole) - 1, len(whole) // 2, 5):
            path.write_bytes(whole[:kept])
            accepted, refused = read(source_of(path))
            texts = [text for *_, text in accepted]
            assert texts == list(self.TEXTS[: len(texts)])
            assert refused == [(0, len(texts), "truncated")]
            if kept > 5:
                assert texts

    @pytest.mark.parametrize("name", COMPRESSED)
    def test_damage_in_the_middle_is_the_end_and_told(self, tmp_path: Path, name: str) -> None:
        path = write_jsonl(tmp_path / name, self.TEXTS)
        content = bytearray(path.read_bytes())
        content[-200:] = bytes(200)
        path.write_bytes(content)
        _, refused = read(source_of(path))
        assert refused[-1][2] == "truncated"

    def test_members_and_frames_one_after_the_other_are_one_file(self, tmp_path: Path) -> None:
        lines = [json.dumps({"text": text}).encode() + b"\n" for text in ("a", "b", "c")]
        skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
        members = {
            "a.jsonl.gz": b"".join(gzip.compress(line) for line in lines),
            "a.jsonl.zst": skippable.join(zstandard.compress(line) for line in lines),
            "a.jsonl.bz2": b"".join(bz2.compress(line) for line in lines),
            "a.jsonl.xz": bytes(8).join(lzma.compress(line) for line in lines) + bytes(4),
        }
        for name, content in members.items():
            (tmp_path / name).write_bytes(content)
            accepted, refused = read(source_of(tmp_path / name))
            assert ([text for *_, text in accepted], refused) == (["a", "b", "c"], [])

    def test_a_zstd_file_with_a_wide_window_is_read(self, tmp_path: Path) -> None:
        wide = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
        compressor = zstandard.ZstdCompressor(compression_params=wide).compressobj()
        content = compressor.compress(b'{"text": "a"}\n') + compressor.flush()
        (tmp_path / "a.jsonl.zst").write_bytes(content)
        assert zstandard.get_frame_parameters(content).window_size == 1 << 30
        assert read(source_of(tmp_path / "a.jsonl.zst")) == ([(0, 0, "a")], [])

    @pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst", "a.txt.bz2", "a.txt.xz"])
    def test_a_compressed_text_file_is_one_document(self, tmp_path: Path, name: str) -> None:
        path = write_bytes(tmp_path / name, b"\xef\xbb\xbfone\ntwo\n")
        assert read(source_of(path)) == ([(0, 0, "one\ntwo\n")], [])
        path.write_bytes(path.read_bytes()[:-4])
        assert read(source_of(path)) == ([], [(0, 0, "truncated")])
