"""datatrove's `DocumentTokenizer`: `python datatrove_run.py JOB REPORT`."""

# pyright: reportMissingImports=false
import json
import sys
import time
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer


def main(job: dict, report: Path) -> None:
    """Tokenize in file order, without the shuffling that it does by default."""
    out = Path(job["out"])
    executor = LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(Path(job["files"][0]).parent), glob_pattern="*.jsonl"),
            DocumentTokenizer(
                output_folder=str(out / "tokens"),
                tokenizer_name_or_path=job["tokenizer"],
                eos_token=job["eos_token"],
                shuffle_documents=False,
            ),
        ],
        tasks=job["workers"],
        workers=job["workers"],
        logging_dir=str(out / "logs"),
    )
    started = time.perf_counter()
    executor.run()
    around = time.perf_counter() - started
    tasks = [json.loads(path.read_text()) for path in (out / "logs" / "stats").glob("*.json")]
    slowest = max(sum(step["time_stats"]["total"] for step in task) for task in tasks)
    report.write_text(
        json.dumps(
            {
                "stage_seconds": slowest,
                "stage": "its own statistics: the slower task's reader and tokenizer",
                "parts": {"executor.run": around},
            }
        )
    )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
