"""Hugging Face `datasets`: load, `map(batched=True)`, `to_parquet`."""

# pyright: reportMissingImports=false
import json
import sys
import time
from pathlib import Path

from datasets import Features, List, Value, load_dataset
from tokenizers import Tokenizer


def main(job: dict, report: Path) -> None:
    """Tokenize in file order with `num_proc` processes."""
    tokenizer, eos = Tokenizer.from_file(job["tokenizer"]), job["eos_id"]

    def encode(texts: list[str]) -> dict[str, list[list[int]]]:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return {"ids": [[*encoding.ids, eos] for encoding in encodings]}

    marks = [time.perf_counter()]
    loaded = load_dataset("json", data_files=job["files"], split="train")
    marks.append(time.perf_counter())
    encoded = loaded.map(
        encode,
        batched=True,
        input_columns="text",
        num_proc=job["workers"],
        remove_columns=loaded.column_names,
        features=Features({"ids": List(Value("uint32"))}),
    )
    marks.append(time.perf_counter())
    encoded.to_parquet(str(Path(job["out"]) / "ids.parquet"))
    marks.append(time.perf_counter())
    steps = zip(("load_dataset", "map", "to_parquet"), marks[:-1], marks[1:], strict=True)
    report.write_text(
        json.dumps(
            {
                "stage_seconds": marks[-1] - marks[0],
                "stage": "load_dataset, map and to_parquet, by the clock",
                "parts": {name: after - before for name, before, after in steps},
            }
        )
    )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
