"""The story of batching, told by running it: `python story.py [FOLDER]` prints the transcript.

1. Visitors open pages of 16 thumbnails at `naive.py`, which calls the model with one image at a time.
2. The same at `headrace serve` with batches of one, profiled: what does `headrace diagnose` say?
3. What would `headrace whatif process.batch=16` make of these very arrivals? It is asked before anybody tries.
4. Then it is tried.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from visitors import PAGE, Seen, visit

HERE = Path(__file__).parent
#: At two pages a second.
NUM_PAGES = 40


@contextmanager
def serving(*command: str) -> Iterator[str]:
    """Run a service and give its address."""
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr
    try:
        said = ""
        while not (found := re.search(r"listening on (http://[^\s;]+)", said)):
            line = process.stderr.readline()
            if not line:
                raise RuntimeError(f"{command} did not start: {said}")
            said += line
        yield found[1]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def wait_until_ready(address: str) -> None:
    """Wait until a service lets requests in."""
    until = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{address}/readyz", timeout=10).close()
        except urllib.error.HTTPError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def serve(folder: Path, name: str, batch: int) -> Seen:
    """Have visitors at `headrace serve`, profiled, and return what they saw."""
    plan = ("--plan", str(HERE / "one_by_one.toml"), "--set", f"process.batch={batch}")
    output = ("--profile", "-o", str(folder / name), "--port", "0")
    with serving("-m", "headrace", "serve", f"{HERE / 'jobs.py'}:pipeline", *plan, *output) as address:
        wait_until_ready(address)
        return visit(address, "/v1/jobs", NUM_PAGES)


def headrace(*arguments: str) -> str:
    """Return what a command prints."""
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def tell(what: str, seen: Seen) -> None:
    """Print what visitors saw."""
    image = sorted(seen.images)[len(seen.images) // 2]
    of = f"p50 of {len(seen.pages)} pages of {PAGE}"
    print(f"{what}: a page is complete after {seen.page_p50() * 1e3:.0f} ms, an image after {image * 1e3:.0f} ms ({of}), "
          f"{seen.num_failed} failed")  # fmt: skip


def measured_p50(run: Path) -> float:
    """Return the median latency that a run folder tells, seconds."""
    return float(json.loads((run / "run.json").read_text())["summary"]["latency_seconds"]["p50"])


def predict(folder: Path) -> tuple[float, float, float] | str:
    """Return low, middle and high of the predicted median latency, seconds; or why there is none."""
    text = headrace("whatif", str(folder / "one"), "--set", "process.batch=16", "--no-ledger", "--json")
    latency = json.loads(text)["latency_p50"]
    if latency["refused"]:
        return str(latency["refused"])
    low, middle, high = (float(latency["predicted"][key]) for key in ("low", "mid", "high"))
    return low, middle, high


def main() -> None:
    """Tell the story, to be read while it goes on."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/batching")
    folder.mkdir(parents=True, exist_ok=True)
    with serving(str(HERE / "naive.py"), "0") as address:
        tell("one image per call, written by hand", visit(address, "/", NUM_PAGES))
    tell("headrace serve, batches of 1", serve(folder, "one", 1))
    print(f"\n$ headrace diagnose {folder / 'one'}")
    print(headrace("diagnose", str(folder / "one")).partition("\nEvidence")[0])
    predicted = predict(folder)
    if isinstance(predicted, str):
        print(f"whatif process.batch=16 predicts no latency: {predicted}\n")
    else:
        low, middle, high = (seconds * 1e3 for seconds in predicted)
        print(
            f"whatif process.batch=16 predicts, for the same arrivals: p50 {middle:.1f} ms ({low:.1f} to {high:.1f})\n"
        )
    tell("headrace serve, batches of up to 16", serve(folder, "sixteen", 16))
    one, sixteen = measured_p50(folder / "one"), measured_p50(folder / "sixteen")
    print(f"by the service's own clock: p50 {one * 1e3:.1f} ms with batches of 1, {sixteen * 1e3:.1f} ms with up to 16")
    if not isinstance(predicted, str):
        print(f"the prediction was {predicted[1] / sixteen - 1:+.1%} off")
    print("The device was emulated: 17.5 ms a call and 0.1 ms an image are settings, not measurements.")


if __name__ == "__main__":
    main()
