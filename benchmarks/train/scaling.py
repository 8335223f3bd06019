"""Whether the throughput of several ranks is predicted from the training of one, and a link that makes more ranks slower.

Each job is trained on 1, 2 and 4 ranks in turn by `headrace train scale`. A round's ranks are compared with what the training
on one rank of the same round predicts, with the link that was measured after all rounds: cores that become faster or slower
between rounds change both. The middle round counts.

Then a training runs behind a loopback interface that is throttled (`scaling_throttled`), where more ranks are slower than one,
and again with what headrace proposes.

    python -m benchmarks.train.scaling [PART...] [--quick] [--json] [--write]

Parts: computes, exchanges, repair, turn; each takes less than four minutes where nothing else runs, and with `--write` those
that other calls of the day measured are kept.
"""

from __future__ import annotations

import json
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.paths import ROOT
from benchmarks.train.scaling_throttled import JOB, RATE, throttle_command
from headrace.base.documents import decode_document
from headrace.diagnose.training.scaling import read_short_training
from headrace.diagnose.training.scaling_predicted import predict_rate
from headrace.diagnose.training.simulation_whatif import TrainingReplay
from headrace.runs.formats.scaling import FILE, Part, ScalingDocument
from headrace.runs.reader import read_run

#: {name: width of four layers, batch}: 1 MB and 4 MB of gradients.
JOBS = {"computes": (256, 512), "exchanges": (512, 64)}
RANKS = (1, 2, 4)
_TIMEOUT_SECONDS = 900


def run(quick: bool) -> dict[str, Any]:
    """Return what was predicted and measured.

    Args:
        quick: One job, one round of fewer steps, and no throttled link.
    """
    return {name: PARTS[name](quick) for name in (["exchanges"] if quick else PARTS)}


def _measure_job(job: str, quick: bool) -> dict[str, Any]:
    """Return what more ranks bring to a job, and what was predicted."""
    rounds, steps = (1, 24) if quick else (3, 100)
    width, batch = JOBS[job]
    with tempfile.TemporaryDirectory(prefix="scaling-") as name:
        folder = Path(name) / job
        options = [
            "-o",
            str(folder),
            "--ranks",
            ",".join(map(str, RANKS)),
            "--rounds",
            str(rounds),
            "--steps",
            str(steps),
        ]
        words = ["train", "scale", *options, "--json", str(JOB), str(width), str(batch)]
        _run([sys.executable, "-m", "headrace", *words])
        document = decode_document((folder / FILE).read_bytes(), ScalingDocument)
        return {"rounds": rounds, "steps": steps, "rungs": _describe(document, _errors_by_round(document, folder))}


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False, timeout=_TIMEOUT_SECONDS, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}; read what it printed above")
    return done.stdout


def _errors_by_round(document: ScalingDocument, folder: Path) -> dict[int, list[float]]:
    """Return by what share each round's rate was predicted too high, from the training on one rank of the same round."""
    errors: dict[int, list[float]] = {ranks: [] for ranks in RANKS if ranks > 1}
    if document.link is None:
        raise RuntimeError("the link between ranks was not measured")
    for number in range(1, document.rungs[0].rounds + 1):
        replay = TrainingReplay(read_run(folder / f"ranks-1-{number}"))
        for ranks, found in errors.items():
            training = read_short_training(read_run(folder / f"ranks-{ranks}-{number}"), ranks)
            predicted = predict_rate(replay, ranks, document.link).mid
            found.append(predicted * training.step_seconds / training.samples - 1)
    return errors


def _describe(document: ScalingDocument, errors: Mapping[int, list[float]]) -> dict[str, Any]:
    return {
        str(rung.ranks): {
            "samples_per_second": rung.samples_per_second,
            "efficiency": rung.efficiency.mid,
            "efficiency_between": (rung.efficiency.low, rung.efficiency.high),
            "predicted": None if rung.predicted is None else rung.predicted.mid,
            "error": statistics.median(errors[rung.ranks]) if rung.ranks in errors else None,
            "errors": errors.get(rung.ranks, []),
            "losses": rung.losses,
            "adds_up": abs(sum(rung.losses.values()) - (1 - rung.efficiency.mid)) < 1e-9,
        }
        for rung in document.rungs
    }


def _throttled(part: str, quick: bool) -> dict[str, Any] | None:
    """Return what a part of `scaling_throttled` found; None where a link cannot be throttled here."""
    if shutil.which("unshare") is None or subprocess.run(throttle_command(RATE, "true"), check=False).returncode:
        return None
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
        words = [sys.executable, "-m", "benchmarks.train.scaling_throttled", part, folder, "1" if quick else "3"]
        found: dict[str, Any] = json.loads(_run(throttle_command(RATE, shlex.join(words))))
    return found


PARTS = {
    **{job: partial(_measure_job, job) for job in JOBS},
    **{part: partial(_throttled, part) for part in ("repair", "turn")},
}


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    jobs = {job: result[job] for job in JOBS if job in result}
    lines = ["# Several ranks, predicted from one", ""]
    if jobs:
        lines += _jobs_text(jobs)
    lines += _repair_text(result["repair"]) if "repair" in result else []
    return "\n".join([*lines, *(_turn_text(result["turn"]) if "turn" in result else [])])


def _jobs_text(jobs: Mapping[str, Any]) -> list[str]:
    about = next(iter(jobs.values()))
    lines = [
        f"Rounds: {about['rounds']}, of {about['steps']} steps; gloo ranks of one thread that share the machine's cores.",
        "Off by: the middle of the rounds, each predicted from its own training on one rank; in brackets each of them.",
        "",
        "| job | ranks | samples/s | efficiency | off by | losses add up |",
        "|---|---|---|---|---|---|",
    ]
    for job, found in jobs.items():
        for ranks, rung in found["rungs"].items():
            low, high = rung["efficiency_between"]
            each = ", ".join(f"{error:+.1%}" for error in rung["errors"])
            lines.append(
                f"| {job} | {ranks} | {rung['samples_per_second']:,.0f} | {rung['efficiency']:.0%} [{low:.0%}, {high:.0%}] | "
                + (f"{rung['error']:+.1%} ({each})" if each else "")
                + f" | {'yes' if rung['adds_up'] else 'NO'} |"
            )
    return [*lines, "", "What the ranks lose, as a share of the efficiency:", "", *_losses(jobs), ""]


def _losses(jobs: Mapping[str, Any]) -> list[str]:
    lines = [f"| job | ranks | {' | '.join(Part)} |", f"|---|---|{'---|' * len(Part)}"]
    for job, found in jobs.items():
        for ranks, rung in found["rungs"].items():
            if ranks != "1":
                shares = " | ".join(f"{rung['losses'][part]:+.1%}" for part in Part)
                lines.append(f"| {job} | {ranks} | {shares} |")
    return lines


def _repair_text(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["The link was not throttled: `unshare` and `tc` are not here, or not allowed.", ""]
    lines = [
        "## A link that makes more ranks slower",
        "",
        f"A loopback interface of {found['rate'] / 1e6:.0f} Mbit/s that all ranks share. Predictions were frozen first.",
        f"The best proposal ran in {found['rounds']} rounds in turn with the unrepaired training, others in one.",
        "",
        "| ranks | of one | first verdict | proposed | predicted | measured | off by | then of one |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for ranks, about in found["ranks"].items():
        for row in about["proposals"]:
            ratio = row["predicted"]
            lines.append(
                f"| {ranks} | x{about['of_one']:.2f} | {found['verdicts'][ranks].partition(':')[0]} | {row['setting']} | "
                f"x{ratio['mid']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}] | x{row['measured']:.2f} | "
                f"{ratio['mid'] / row['measured'] - 1:+.1%} | x{row['of_one_after']:.2f} |"
            )
    return [*lines, ""]


def _turn_text(found: dict[str, Any] | None) -> list[str]:
    if found is None or found["predicted"] is None:
        return ["The bandwidth at which two ranks turn slower than one was not measured."]
    rows = "; ".join(
        f"{row['bytes_per_second'] / 1e6:.1f} MB/s: x{row['two'] / row['one']:.2f}" for row in found["rows"]
    )
    says = "at no rate" if found["measured"] is None else f"{found['measured'] / 1e6:.1f} MB/s"
    turns = (
        "Two ranks turn slower than one below some bandwidth of each rank's link. Predicted from one rank: "
        f"{found['predicted'] / 1e6:.1f} MB/s. Measured: {says} ({rows})."
    )
    return [turns]


if __name__ == "__main__":
    measure.run_parts("train.scaling", __doc__.splitlines()[0], PARTS, as_text)
