"""A link that makes more ranks slower than one, and what repairs it; `benchmarks.train.scaling` starts it behind such a link.

    python -m benchmarks.train.scaling_throttled repair|turn FOLDER ROUNDS       # prints one JSON object

The ranks' traffic goes through the loopback interface of a network namespace of its own, whose rate `tc` limits: all ranks
share it. `repair`: 1, 2 and 4 ranks are trained, headrace diagnoses and predicts what its proposals bring, and that is frozen;
then the unrepaired training and the best proposal run in turn, and each other proposal once. `turn`: two ranks at three rates
around the one below which they are predicted to be slower than one.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paths import ROOT
from headrace.diagnose.training.scaling import ShortTraining, describe_rungs
from headrace.diagnose.training.scaling_predicted import propose, turning_bandwidth
from headrace.diagnose.training.simulation_whatif import TrainingReplay
from headrace.diagnose.training.verdicts import TrainingAnalysis, diagnose_training
from headrace.runs.formats.scaling import Proposal, Rung
from headrace.runs.reader import read_run
from headrace.train.ranks.ladder import LadderSettings, train_shortly
from headrace.train.ranks.link_probe import measure_link

JOB = ROOT / "benchmarks" / "train" / "scaling_job.py"
#: Four layers of that width, 4 MB of gradients; the batch makes a step of some 50 ms.
WIDTH, BATCH = 512, 512
#: Bits per second of the loopback interface.
RATE = 800_000_000
#: Updates of a training that is diagnosed, and of the others: few, because one that accumulates eight batches takes as long.
STEPS_RECORDED, STEPS = 26, 10
RANKS = (2, 4)
#: Rates at which the turn is looked for, over the predicted one.
AROUND = (0.5, 1.0, 2.0)
_THREADS = 1


def throttle_command(rate: int, command: str) -> list[str]:
    """Return a command that runs another one behind a loopback interface of so many bits per second."""
    limited = f"ip link set lo up && tc qdisc add dev lo root {_limit(rate)} && exec {command}"
    return ["unshare", "-rn", "sh", "-c", limited]


def _limit(rate: int) -> str:
    return f"tbf rate {rate}bit burst 512kb latency 2s"


def repair(folder: Path, rounds: int) -> dict[str, Any]:
    """Return what more ranks bring behind the link, and what each proposal was predicted to bring, and brought."""
    alone, rungs = _measure_unrepaired(folder)
    frozen = {ranks: _proposals(folder / f"ranks-{ranks}", rungs[ranks]) for ranks in RANKS}
    found: dict[str, Any] = {
        "rate": RATE,
        "rounds": rounds,
        "one": alone,
        "verdicts": {ranks: _diagnose(folder / f"ranks-{ranks}") for ranks in RANKS},
        "frozen_at": time.time(),
        "ranks": {
            ranks: {
                "of_one": rungs[ranks].samples_per_second / rungs[1].samples_per_second,
                "losses": rungs[ranks].losses,
                "proposals": [_row(one, number == 0) for number, one in enumerate(frozen[ranks])],
            }
            for ranks in RANKS
        },
    }
    for number in range(rounds):
        for ranks in RANKS:
            _measure_round(folder, ranks, found["ranks"][ranks]["proposals"], number)
        found["one"].append(_rate(folder, 1, ""))
    one = statistics.median(found["one"])
    for ranks in RANKS:
        for row in found["ranks"][ranks]["proposals"]:
            row["measured"] = statistics.median(after / before for before, after in row["pairs"])
            row["of_one_after"] = statistics.median(after for _, after in row["pairs"]) / one
    return found


def _measure_unrepaired(folder: Path) -> tuple[list[float], dict[int, Rung]]:
    trainings = {ranks: [_train(folder / f"ranks-{ranks}", ranks, "", STEPS_RECORDED)] for ranks in (1, *RANKS)}
    rungs = {rung.ranks: rung for rung in describe_rungs(trainings)}
    return [rungs[1].samples_per_second], rungs


def _proposals(path: Path, rung: Rung) -> list[Proposal]:
    """Return what headrace proposes to change in the script, the best first; of several values of a setting the best one."""
    replay = TrainingReplay(read_run(path))
    proposed = propose(replay, rung, num_cores=replay.recorded.cores, threads=_THREADS)
    found: dict[str, Proposal] = {}
    for one in proposed:
        key = one.setting.partition("=")[0]
        if one.ratio is not None and key not in ("", "link.bandwidth"):
            found.setdefault(key, one)
    return list(found.values())


def _row(proposal: Proposal, is_best: bool) -> dict[str, Any]:
    ratio = proposal.ratio
    assert ratio is not None
    predicted = {"low": ratio.low, "mid": ratio.mid, "high": ratio.high}
    return {"setting": proposal.setting, "says": proposal.says, "predicted": predicted, "is_best": is_best, "pairs": []}


def _diagnose(path: Path) -> str:
    first = diagnose_training(TrainingAnalysis(read_run(path))).first
    return f"{first.verdict}: {first.says}"


def _measure_round(folder: Path, ranks: int, rows: list[dict[str, Any]], number: int) -> None:
    """Add the samples per second of a round, unrepaired and repaired; every second round goes backwards."""
    chosen = [row for row in rows if row["is_best"] or not number]
    settings = ["", *(row["setting"] for row in chosen)]
    rates = {setting: _rate(folder, ranks, setting) for setting in (settings[::-1] if number % 2 else settings)}
    for row in chosen:
        row["pairs"].append((rates[""], rates[row["setting"]]))


def _rate(folder: Path, ranks: int, setting: str) -> float:
    path = folder / f"{ranks}-{setting or 'unrepaired'}-{time.monotonic_ns()}"
    training = _train(path, ranks, setting)
    return training.samples / training.step_seconds


def _train(path: Path, ranks: int, setting: str, steps: int = STEPS) -> ShortTraining:
    words = [str(JOB), str(WIDTH), str(BATCH), *([setting] if setting else [])]
    return train_shortly(LadderSettings(argv=tuple(words), output=path, steps=steps, threads=_THREADS), ranks, path)


def turn(folder: Path, rounds: int) -> dict[str, Any]:
    """Return the bandwidth below which two ranks are slower than one, predicted from one rank, and measured."""
    _set_rate(
        100 * RATE
    )  # as good as none: the training of one rank exchanges nothing, and the latency is the machine's
    _train(folder / "one", 1, "", STEPS_RECORDED)
    predicted = turning_bandwidth(TrainingReplay(read_run(folder / "one")), 2, measure_link(), 1 / 2)
    if predicted is None:
        return {"predicted": None}
    rows = []
    for number in range(rounds):
        for times in AROUND if number % 2 == 0 else AROUND[::-1]:
            _set_rate(round(2 * predicted * times * 8))  # both ranks send through the one interface
            one, two = _rate(folder, 1, ""), _rate(folder, 2, "")
            rows.append({"times": times, "bytes_per_second": predicted * times, "one": one, "two": two})
    return {"predicted": predicted, "rows": rows, "measured": find_turn(rows)}


def find_turn(rows: list[dict[str, float]]) -> float | None:
    """Return the bytes per second at which two ranks are as fast as one; None: at no rate, or at each.

    A step is what it takes without a link, and bytes over bandwidth: a line over its inverse, which is fitted.

    Args:
        rows: `bytes_per_second`, and samples per second of `one` rank and of `two`, at two rates or more.
    """
    inverse = np.array([1 / row["bytes_per_second"] for row in rows])
    slower = np.array([row["one"] / row["two"] for row in rows])
    slope, without = np.polyfit(inverse, slower, 1)
    return float(slope / (1 - without)) if slope > 0 and without < 1 else None


def _set_rate(rate: int) -> None:
    subprocess.run(["sh", "-c", f"tc qdisc change dev lo root {_limit(rate)}"], check=True)


if __name__ == "__main__":
    part, folder_, rounds_ = sys.argv[1:]
    print(json.dumps({"repair": repair, "turn": turn}[part](Path(folder_), int(rounds_))))
