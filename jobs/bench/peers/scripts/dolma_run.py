"""`dolma tokens`."""

# pyright: reportMissingImports=false
import json
import sys
import time
from pathlib import Path

from dolma.cli.__main__ import main as dolma


def main(job: dict, report: Path) -> None:
    """Run the command in this process, so that its imports are not in the stage's time."""
    out = Path(job["out"])
    arguments = {
        "--documents": str(Path(job["files"][0]).parent / "*.jsonl"),
        "--destination": str(out / "tokens"),
        "--tokenizer.name_or_path": job["tokenizer"],
        "--tokenizer.eos_token_id": str(job["eos_id"]),
        "--tokenizer.pad_token_id": str(job["eos_id"]),
        "--dtype": "uint32",
        "--processes": str(job["workers"]),
        "--work_dir.input": str(out / "work" / "input"),
        "--work_dir.output": str(out / "work" / "output"),
    }
    started = time.perf_counter()
    dolma(["tokens", *(word for pair in arguments.items() for word in pair)])
    seconds = time.perf_counter() - started
    report.write_text(
        json.dumps({"stage_seconds": seconds, "stage": "the command's main(), by the clock"})
    )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
