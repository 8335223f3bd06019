"""The commands of headrace on the models of six packages: ``python -m benchmarks.real_models [--quick] [--json] [--write]``.

For each package the pipeline is run, profiled, diagnosed and asked what if; its first model is held against itself on another
engine, optimized with a small budget, tried on every engine, switched while the pipeline runs, and shadowed. A command is ok
where its exit status is one that it documents for a right outcome, and it printed no traceback. Answers are compared with the
package's own code, file by file. Models that are broken on purpose must be refused, honest twins must not.

`planted` counts a verdict of `reject`; `undecided` are those that it could not tell (status 4: such a model is not to be used
either), with how many more items would decide; `not_accepted` is both. Keys of the JSON: models, commands_ok, commands,
answers_equal, planted {refused, undecided, not_accepted, accepted, of}, honest_refused, honest_undecided, honest, cases.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.paths import ROOT
from benchmarks.real_models import packages
from benchmarks.real_models.cases import NAMES

_HEADRACE = ("-c", "import sys; from headrace.cli import main; sys.exit(main(sys.argv[1:]))")
_PATIENCE_SECONDS = 900
#: What an undecided verdict says would decide it.
_MORE = re.compile(r"about ([\d,]+) more would decide it")
#: Files of each package.
FULL, QUICK = 160, 48
#: After which the Plan of a run that follows it is changed.
_SWITCH_AFTER_SECONDS = 4.0


@dataclass
class Command:
    """One call of headrace."""

    name: str
    status: int
    ok: bool
    seconds: float
    says: str = ""
    """The last lines, of one that is not ok."""


@dataclass
class CaseResult:
    """What came of one package."""

    name: str
    models: list[str] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    answers_equal: int = 0
    answers: int = 0
    broken: dict[str, str] = field(default_factory=dict)
    """{defect: verdict, and the gate that gave it}."""
    honest: dict[str, str] = field(default_factory=dict)


class Trial:
    """One package in a folder of its own."""

    def __init__(self, name: str, folder: Path, count: int) -> None:
        self.folder = folder
        self.result = CaseResult(name)
        self.pipeline = f"benchmarks.real_models.{name}:pipeline"
        self.environment = {
            **os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "REAL_MODELS_ITEMS": str(folder / "items"),
            "HEADRACE_LEDGER": str(folder / "ledger.sqlite"),
        }  # fmt: skip
        said = self._worker("prepare", name, str(folder), str(count))
        self.models: dict[str, str] = said["models"]
        self.planted: dict[str, dict[str, str]] = said["planted"]
        self.result.models = list(self.models)
        self.model = next(iter(self.models.values()))

    def run(self) -> CaseResult:
        """Call everything."""
        self._run_and_look()
        self._variants()
        self._switch_and_shadow()
        return self.result

    def _run_and_look(self) -> None:
        self._headrace("run", "run", self.pipeline)
        results = self.folder / "run" / "results.jsonl"
        if results.is_file():
            found = self._worker("compare", self.result.name, str(results), str(self.folder / "own.json"))
            self.result.answers_equal, self.result.answers = found
        self._headrace("profile", "profile", self.pipeline, "-o", "profiled")
        recorded = str(self.folder / "profile" / "profiled")
        self._headrace("diagnose", "diagnose", recorded)
        stage = "rec.process" if len(self.models) > 1 else "process"
        # 4: the recording was too short or too noisy to predict from, with the reason.
        self._headrace("whatif", "whatif", recorded, "--set", f"{stage}.workers=2", allowed=(0, 4))

    def _variants(self) -> None:
        for key, file in self.models.items():
            self._headrace(f"portability {key}", "optimize", file, "--portability")
        if not self.planted:  # several inputs, which noise is made up for
            self._headrace("validate", "validate", self.model, f"{self.model}@openvino", allowed=(4,))
            return
        golden = ("--golden", str(self.folder / "golden.npz"))
        self._headrace("validate", "validate", self.model, f"{self.model}@openvino", *golden, allowed=(0, 4))
        self._headrace("validate on noise", "validate", self.model, f"{self.model}@openvino", allowed=(4,))
        search = ("--data", str(self.folder / "data.npz"), *golden, "--pipeline", self.pipeline)
        budget = ("--budget", "20s", "--no-layout", "-o", "plan.toml")
        self._headrace("optimize", "optimize", self.model, *search, *budget, allowed=(0, 4))
        for kind, verdicts in (("broken", self.result.broken), ("honest", self.result.honest)):
            for name, file in self.planted[kind].items():
                verdicts[name] = self._verdict(file, *golden)

    def _switch_and_shadow(self) -> None:
        key = "models.rec" if len(self.models) > 1 else "model"
        live = self.folder / "live.toml"
        live.write_text(f"[{key}]\nthreads = 1\n")
        other = f'[{key}]\nthreads = 1\n\n[{key}.options]\ngraph_optimization = "basic"\n'
        following = ("run", self.pipeline, "--plan", str(live), "--follow")
        self._headrace("follow", *following, meanwhile=lambda: live.write_text(other))
        if len(self.models) == 1:
            self._headrace("shadow", "run", self.pipeline, "--shadow", f"{self.model}@onnx,graph_optimization=basic")

    def _verdict(self, file: str, *golden: str) -> str:
        ran = self._call(self.folder, "validate", self.model, file, *golden, "--batch", "4", "--json")
        try:
            document = json.loads(ran.stdout)
        except ValueError:
            return f"status {ran.returncode}: {_last(ran)}"
        return verdict_of(document)

    # --- calling

    def _headrace(self, name: str, *words: str, allowed: tuple[int, ...] = (0,), meanwhile: object = None) -> None:
        place = self.folder / name.split()[0]
        place.mkdir(exist_ok=True)
        began = time.monotonic()
        ran = self._call(place, *words, meanwhile=meanwhile)
        ok = ran.returncode in allowed and "Traceback (most recent call last)" not in ran.stderr
        command = Command(name, ran.returncode, ok, round(time.monotonic() - began, 1), "" if ok else _last(ran))
        self.result.commands.append(command)
        print(
            f"{self.result.name}: {name}: {command.seconds:g} s, {'ok' if ok else command.says}",
            file=sys.stderr,
            flush=True,
        )

    def _call(self, place: Path, *words: str, meanwhile: object = None) -> subprocess.CompletedProcess[str]:
        command = [str(packages.PYTHON), *_HEADRACE, *words]
        with subprocess.Popen(
            command, cwd=place, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        ) as child:  # fmt: skip
            try:
                if callable(meanwhile):
                    time.sleep(_SWITCH_AFTER_SECONDS)
                    meanwhile()
                out, err = child.communicate(timeout=_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                out, err = child.communicate()
            return subprocess.CompletedProcess(command, child.returncode, out, err)

    def _worker(self, *words: str) -> object:
        command = [str(packages.PYTHON), "-m", "benchmarks.real_models.worker", *words]
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise RuntimeError(f"{' '.join(words[:2])}: {ran.stderr[-2000:]}")
        return json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("SAID "))[5:])


def _last(ran: subprocess.CompletedProcess[str]) -> str:
    lines = (ran.stderr or ran.stdout).strip().splitlines()
    return f"status {ran.returncode}: {' | '.join(lines[-3:])[-400:]}"


def verdict_of(document: dict[str, Any]) -> str:
    """Return the verdict with the gate that rejected, or with how many more items would decide."""
    decided = next((gate for gate in document["gates"] if gate["outcome"] == "rejected"), None)
    if decided:
        return f"{document['verdict']} by {decided['name']}"
    more = _MORE.search(document["says"])
    return f"{document['verdict']}: add {more[1]} items" if more else str(document["verdict"])


def summed(results: list[CaseResult]) -> dict[str, object]:
    """Return the figures of all packages."""
    commands = [command for result in results for command in result.commands]
    broken = [verdict for result in results for verdict in result.broken.values()]
    honest = [verdict for result in results for verdict in result.honest.values()]
    equal, of = (sum(getattr(result, key) for result in results) for key in ("answers_equal", "answers"))
    return {
        "models": sum(len(result.models) for result in results),
        "commands_ok": sum(command.ok for command in commands),
        "commands": len(commands),
        "answers_equal": equal / of if of else 0.0,
        "answers": of,
        "planted": {
            "refused": sum(one.startswith("reject") for one in broken),
            "undecided": sum(one.startswith("inconclusive") for one in broken),
            "not_accepted": sum(one.startswith(("reject", "inconclusive")) for one in broken),
            "accepted": sum(one.startswith("accept") for one in broken), "of": len(broken),
        },
        "honest_refused": sum(one.startswith("reject") for one in honest),
        "honest_undecided": sum(one.startswith("inconclusive") for one in honest),
        "honest": len(honest),
        "cases": [asdict(result) for result in results],
    }  # fmt: skip


def told(found: dict[str, object]) -> str:
    """Return the figures as Markdown."""
    return "\n".join(["# Real models", "", *_lines(found), ""])


def _lines(found: dict[str, object]) -> Iterator[str]:
    planted = found["planted"]
    yield f"{found['models']} models of {len(found['cases'])} packages;"
    yield f"{found['commands_ok']} of {found['commands']} commands are ok;"
    yield f"{found['answers_equal']:.1%} of {found['answers']} answers are as by the packages' own code;"
    yield (
        f"of {planted['of']} planted defects {planted['refused']} are refused, {planted['undecided']} undecided (not to be "
        f"used either) and {planted['accepted']} accepted;"
    )
    yield (
        f"of {found['honest']} honest twins {found['honest_refused']} are refused and {found['honest_undecided']} undecided."
    )
    yield from ("", "| package | models | commands ok | answers equal | broken | honest |", "|---|---|---|---|---|---|")
    for case in found["cases"]:
        ok = sum(command["ok"] for command in case["commands"])
        cells = [
            case["name"], ", ".join(case["models"]), f"{ok} of {len(case['commands'])}",
            f"{case['answers_equal']} of {case['answers']}",
            *("; ".join(f"{name}: {verdict}" for name, verdict in case[kind].items()) for kind in ("broken", "honest")),
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"
    failed = [(case["name"], command) for case in found["cases"] for command in case["commands"] if not command["ok"]]
    yield from ("", *(f"- {name}, {command['name']}: {command['says']}" for name, command in failed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} files of each package, not {FULL}")
    parser.add_argument("--only", choices=NAMES, action="append", help="this package alone; may be repeated")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--write", action="store_true", help="write a dated result file")
    args = parser.parse_args()
    packages.prepare()
    results = []
    for name in args.only or NAMES:
        with tempfile.TemporaryDirectory(prefix=f"headrace-{name}-") as folder:
            results.append(Trial(name, Path(folder), QUICK if args.quick else FULL).run())
    found = summed(results)
    if args.write:
        print(f"written: {measure.write_result('real_models', told(found), found)}", file=sys.stderr)
    print(json.dumps(found, indent=2) if args.json else told(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
