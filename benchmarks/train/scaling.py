"""Whether the throughput of several ranks is predicted from the training of one, and a link that makes more ranks slower.

Each job is trained on 1, 2 and 4 ranks in turn by `headrace train scale`, which predicts 2 and 4 from one rank and all-reduces
between idle ranks. Then one of them is trained behind a loopback interface that is throttled (`tc`, in a network namespace of
its own), where more ranks are slower than one, and once more with the accumulation that headrace proposes.

    python -m benchmarks.train.scaling [--quick] [--json] [--write]
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.paths import ROOT
from headrace.runs.formats.scaling import Part

_JOB = ROOT / "benchmarks" / "train" / "scaling_job.py"
#: {name: width of four layers, batch}: 1 MB and 4 MB of gradients.
JOBS = {"computes": (256, 512), "exchanges": (512, 64)}
#: The job behind the throttled link, and that link.
_THROTTLED, _RATE = "exchanges", "200mbit"
_THROTTLE = "ip link set lo up && tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 2s && exec {command}"
_TIMEOUT_SECONDS = 600


def run(quick: bool) -> dict[str, Any]:
    """Return what was predicted and measured.

    Args:
        quick: One job, one round of fewer steps, and no throttled link.
    """
    jobs = {"exchanges": JOBS["exchanges"]} if quick else JOBS
    ranks, rounds, steps = "1,2,4", *((1, 24) if quick else (3, 40))
    with tempfile.TemporaryDirectory(prefix="scaling-") as name:
        folder = Path(name)
        found = {
            job: _describe(_scale(folder / job, shape, ranks=ranks, rounds=rounds, steps=steps))
            for job, shape in jobs.items()
        }
        throttled = None if quick else _throttle(folder)
    return {
        "jobs": found,
        "throttled": throttled,
        "settings": {"ranks": ranks, "rounds": rounds, "steps": steps},
        "quick": quick,
    }


def _scale(
    output: Path, shape: tuple[int, int], *, ranks: str, rounds: int, steps: int, accumulate: int = 1, rate: str = ""
) -> dict[str, Any]:
    """Return the document of `headrace train scale`.

    Args:
        output: Folder to write.
        shape: Width and batch.
        ranks: As the command takes them.
        rounds: Of each number.
        steps: Of each training.
        accumulate: Batches for each exchange.
        rate: Of the loopback interface; empty: not throttled.
    """
    width, batch = shape
    options = ["-o", str(output), "--ranks", ranks, "--rounds", str(rounds), "--steps", str(steps), "--json"]
    command = [
        sys.executable,
        "-m",
        "headrace",
        "train",
        "scale",
        *options,
        str(_JOB),
        str(width),
        str(batch),
        str(accumulate),
    ]
    if rate:
        command = ["unshare", "-rn", "sh", "-c", _THROTTLE.format(rate=rate, command=shlex.join(command))]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False, timeout=_TIMEOUT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}; read what it printed above")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _describe(document: dict[str, Any]) -> dict[str, Any]:
    rungs = {}
    for rung in document["rungs"]:
        predicted = rung["predicted"]
        rungs[rung["ranks"]] = {
            "samples_per_second": rung["samples_per_second"],
            "efficiency": rung["efficiency"],
            "predicted": predicted,
            "error": None if predicted is None else predicted["mid"] / rung["samples_per_second"] - 1,
            "losses": rung["losses"],
            "adds_up": abs(sum(rung["losses"].values()) - (1 - rung["efficiency"]["mid"])) < 1e-9,
        }
    return {"rungs": rungs, "link": {key: value for key, value in document["link"].items() if key != "measured"}}


def _throttle(folder: Path) -> dict[str, Any] | None:
    """Return what a throttled link does and what repairs it; None where it cannot be throttled here."""
    probe = ["unshare", "-rn", "sh", "-c", _THROTTLE.format(rate=_RATE, command="true")]
    if shutil.which("unshare") is None or subprocess.run(probe, check=False).returncode:
        return None
    settings: dict[str, Any] = {"ranks": "1,2", "rounds": 2, "steps": 16, "rate": _RATE}
    before = _scale(folder / "throttled", JOBS[_THROTTLED], **settings)
    proposals = [one for one in before["proposals"] if one["setting"].startswith("accumulate=")]
    result: dict[str, Any] = {
        "rate": _RATE,
        "job": _THROTTLED,
        "before": _describe(before),
        "proposed": before["proposals"],
    }
    if proposals:
        accumulate = int(proposals[0]["setting"].partition("=")[2])
        after = _scale(folder / "repaired", JOBS[_THROTTLED], accumulate=accumulate, **settings)
        alone = before["rungs"][0]["samples_per_second"]
        rates = [one["rungs"][-1]["samples_per_second"] for one in (before, after)]
        result |= {
            "accumulate": accumulate,
            "of_one_before": rates[0] / alone,
            "of_one_after": rates[1] / alone,
            "predicted_gain": proposals[0]["ratio"]["mid"],
            "measured_gain": rates[1] / rates[0],
        }
    return result


def as_text(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    settings = result["settings"]
    lines = [
        "# Several ranks, predicted from one",
        "",
        f"Rounds: {settings['rounds']}, of {settings['steps']} steps; gloo ranks of one thread that share the machine's cores.",
        "",
        "| job | ranks | samples/s | efficiency | predicted | off by | losses add up |",
        "|---|---|---|---|---|---|---|",
    ]
    for job, found in result["jobs"].items():
        for ranks, rung in found["rungs"].items():
            efficiency, predicted = rung["efficiency"], rung["predicted"]
            lines.append(
                f"| {job} | {ranks} | {rung['samples_per_second']:,.0f} | {efficiency['mid']:.0%} "
                f"[{efficiency['low']:.0%}, {efficiency['high']:.0%}] | "
                + ("| |" if predicted is None else f"{predicted['mid']:,.0f} | {rung['error']:+.1%} |")
                + f" {'yes' if rung['adds_up'] else 'NO'} |"
            )
    lines += ["", "What the ranks lose, as a share of the efficiency:", "", *_losses(result["jobs"])]
    return "\n".join([*lines, "", *_throttled_text(result["throttled"])])


def _losses(jobs: dict[str, Any]) -> list[str]:
    lines = [f"| job | ranks | {' | '.join(Part)} |", f"|---|---|{'---|' * len(Part)}"]
    for job, found in jobs.items():
        for ranks, rung in found["rungs"].items():
            if ranks != 1:
                shares = " | ".join(f"{rung['losses'][part]:+.1%}" for part in Part)
                lines.append(f"| {job} | {ranks} | {shares} |")
    return lines


def _throttled_text(throttled: dict[str, Any] | None) -> list[str]:
    if throttled is None:
        return ["The link was not throttled."]
    if "accumulate" not in throttled:
        return [f"Behind a link of {throttled['rate']} nothing was proposed that would repair it."]
    says = (
        f"Behind a loopback interface of {throttled['rate']} that the ranks share, 2 ranks of `{throttled['job']}` are "
        f"x{throttled['of_one_before']:.2f} of one. Proposed: accumulate={throttled['accumulate']}, predicted "
        f"x{throttled['predicted_gain']:.2f}, measured x{throttled['measured_gain']:.2f}: so they are "
        f"x{throttled['of_one_after']:.2f} of one."
    )
    return [says]


if __name__ == "__main__":
    measure.run_benchmark("train.scaling", __doc__.splitlines()[0], run, as_text)
