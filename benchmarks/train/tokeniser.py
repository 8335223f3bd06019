"""A training that waits for its tokeniser: is that named each time, and what does a fast one bring?

The story `tokeniser` is trained in turn with a tokeniser in Python, a text at a time, and with one in Rust, a batch at a time;
both are recorded. Named: the first verdict of the former is LOADING in `tokenise`. Rates are compared pair by pair.

    python -m benchmarks.train.tokeniser [--quick] [--json] [--write]
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import measure
from headrace.compare.intervals import centre, paired_interval
from headrace.demo.stories import copy_story, find_folder
from headrace.diagnose.training.rate import find_rate
from headrace.diagnose.training.steps import read_steps
from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training
from headrace.runs.reader import read_run

_KINDS = ("python", "fast")
#: Prints the number of texts, and of those that both make the same ids of.
_SAME_IDS = """
from pathlib import Path
from transformers import BertTokenizerFast
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy
texts = Path("texts.txt").read_text().splitlines()
slow, fast = BertTokenizerLegacy("vocabulary.txt"), BertTokenizerFast("vocabulary.txt")
padded = {"max_length": 128, "padding": "max_length", "truncation": True}
whole = fast(texts, **padded)["input_ids"]
print(len(texts), sum(slow(text, **padded)["input_ids"] == ids for text, ids in zip(texts, whole, strict=True)))
"""


def run(quick: bool) -> dict[str, Any]:
    """Return what was named, and what the fast tokeniser brought.

    Args:
        quick: Two pairs instead of ten.
    """
    with tempfile.TemporaryDirectory(prefix="tokeniser-") as name:
        folder = Path(name) / "story"
        copy_story(find_folder("tokeniser"), folder)
        _run(folder, "texts.py")
        texts, same = map(int, _run(folder, "-c", _SAME_IDS).split())
        pairs = [{kind: _train(folder, kind, number) for kind in _KINDS} for number in range(2 if quick else 10)]
    gains = [math.log(pair["fast"]["rate"] / pair["python"]["rate"]) for pair in pairs]
    interval = paired_interval(gains)
    said = [pair["python"]["said"] for pair in pairs]
    return {
        "texts": texts,
        "same_ids": same,
        "runs": len(pairs),
        "named": sum(one.startswith("LOADING") and " in tokenise" in one for one in said),
        "said": said,
        "sample_seconds": {kind: statistics.median(1 / pair[kind]["rate"] for pair in pairs) for kind in _KINDS},
        "less": 1 - math.exp(-centre(gains)),
        "less_interval": None if interval is None else [1 - math.exp(-one) for one in (interval.low, interval.high)],
        "quick": quick,
    }


def _run(folder: Path, *words: str) -> str:
    return subprocess.run([sys.executable, *words], cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout


def _train(folder: Path, kind: str, number: int) -> dict[str, Any]:
    output = folder / "runs" / f"{kind}-{number}"
    _run(folder, "-m", "headrace", "train", "-o", str(output), "train.py", "--tokeniser", kind)
    recorded = read_run(output)
    first = diagnose_training(TrainingAnalysis(recorded)).first
    (rank,) = read_steps(recorded)
    return {"rate": find_rate(rank), "said": f"{first.title}: {first.says}"}


def as_text(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    interval = result["less_interval"]
    within = "" if interval is None else f" (95 % interval {interval[0]:.1%} to {interval[1]:.1%})"
    seconds = result["sample_seconds"]
    lines = [
        "# A training that waits for its tokeniser",
        "",
        f"Ids of {result['texts']} texts: the same from both tokenisers for {result['same_ids']}.",
        f"Named first: {result['named']} of {result['runs']} runs. The device is a sleep of 15 ms a batch.",
        f"With the fast tokeniser a sample takes {result['less']:.1%} less{within}, in pairs of runs in turn: a median of",
        f"{seconds['fast'] * 1e3:.2f} ms after {seconds['python'] * 1e3:.2f} ms.",
        "",
        *(f"- {one}" for one in result["said"]),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    measure.run_benchmark("train.tokeniser", __doc__.splitlines()[0], run, as_text)
