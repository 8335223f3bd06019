"""Measures how long `import headrace` takes, beside an interpreter that imports nothing: ``python -m benchmarks.import_time``.

Each import happens in a fresh interpreter, the two kinds by turns, so that a drift of the machine meets both. Files are in
the page cache after the first round, which is not counted.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

BARE = "pass"
IMPORT = "import headrace"


def seconds_of(code: str) -> float:
    """Return the wall time of one interpreter that runs the code, start and end included."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


def num_modules(code: str) -> int:
    """Return how many modules an interpreter has loaded after the code."""
    answer = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(len(sys.modules))"],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(answer.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="interpreters of each kind (default 7)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    bare, with_import = [], []
    for number in range(args.rounds + 1):
        pair = seconds_of(BARE), seconds_of(IMPORT)
        if number:
            bare.append(pair[0])
            with_import.append(pair[1])
    result = {
        "version": 1,
        "import_seconds": statistics.median(with_import) - statistics.median(bare),
        "interpreter_seconds": statistics.median(bare),
        "rounds": args.rounds,
        "modules": num_modules(IMPORT) - num_modules(BARE),
        "each_seconds": with_import,
    }
    if args.json:
        print(json.dumps(result))
        return 0
    spread = max(with_import) - min(with_import)
    print(
        f"import headrace: {result['import_seconds'] * 1000:.1f} ms and {result['modules']} modules beyond a bare "
        f"interpreter ({result['interpreter_seconds'] * 1000:.1f} ms); median of {args.rounds}, spread {spread * 1000:.1f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
