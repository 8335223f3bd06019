"""Calls of a model in a process of its own: an engine that crashes there ends that process, and nobody else's.

Engines are native code. Given a size that a model was not made for, one raises, another answers with nothing, and reads memory
that is not its own: the process ends by a signal then or later. So whatever is tried on a guess (made-up inputs, an engine that
a file has never met) is tried here first, and a crash is a finding like any other.

How this works: what the calls are given is written into a folder, one `.npz` file a call. A fresh Python process opens the
model and calls it, and appends a line of JSON to a file after each step. Where it ends before its time, the line that is
missing names the call, and another process goes on after it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import HeadraceError, MissingExtra
from headrace.base.plan import ModelPlan
from headrace.validate.variant_spec import VariantSpec

#: {input: array}, for one call.
Feed = Mapping[str, np.ndarray]

_PATIENCE_SECONDS = 300.0
_LONGEST_WORDS = 200
_TOLD, _PLAN = "told.jsonl", "model.json"


class ModelTrial(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one call."""

    shapes: dict[str, list[int]] | None = None
    """{output: shape} of the answer; None: there was none."""
    why: str = ""
    """Why there was none: the engine's words, or how the process ended."""
    ended: bool = False
    """Whether the process ended."""

    @property
    def is_whole(self) -> bool:
        """Whether there was an answer with something in it: some engines answer a size that does not fit with nothing."""
        return self.shapes is not None and all(0 not in shape for shape in self.shapes.values())


@dataclass(frozen=True, slots=True)
class Trials:
    """What came of all calls of one model."""

    calls: tuple[ModelTrial, ...]
    """In the order of the feeds; shorter where the model did not open, or enough had worked."""
    refused: str = ""
    """Why the model did not open; empty: it did."""
    missing: str = ""
    """What has to be installed first; empty: nothing."""


def try_calls(model: ModelPlan, feeds: Sequence[Feed], *, until_whole: bool = False) -> Trials:
    """Open a model in a process of its own and call it with each of the feeds.

    Args:
        model: File, engine and settings; the torch engine's networks are not known there.
        feeds: What it is called with, one after the other.
        until_whole: Whether the calls after the first whole answer are left out.
    """
    calls: list[ModelTrial] = []
    with tempfile.TemporaryDirectory(prefix="headrace-trial-") as name:
        folder = Path(name)
        (folder / _PLAN).write_bytes(encode_document(model))
        for number, feed in enumerate(feeds):
            arrays: dict[str, Any] = {f"={key}": array for key, array in feed.items()}  # names may be savez's own
            np.savez(folder / f"{number}.npz", **arrays)
        while True:
            how = _child(folder, len(calls), len(feeds), until_whole)
            opened, done = _read_answers(folder)
            if opened is None:
                return Trials(tuple(calls), refused=how or "it did not open")
            if opened.get("refused") or opened.get("missing"):
                return Trials(tuple(calls), refused=opened.get("refused", ""), missing=opened.get("missing", ""))
            calls += done
            if not how:
                return Trials(tuple(calls))
            calls.append(ModelTrial(why=how, ended=True))
            if len(calls) >= len(feeds):
                return Trials(tuple(calls))


def _child(folder: Path, first: int, end: int, until_whole: bool) -> str:
    """Run one process and return how it ended before its time; empty: it did all."""
    (folder / _TOLD).write_text("")
    words = [str(folder), str(first), str(end), "1" if until_whole else ""]
    try:
        ran = subprocess.run(
            [sys.executable, "-P", "-m", "headrace.validate.trials", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not come back within {_PATIENCE_SECONDS:g} s"
    if ran.returncode < 0:
        return f"the process ended by {_signal_name(-ran.returncode)}"
    if ran.returncode:
        last = ran.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return f"the process ended with status {ran.returncode}: {''.join(last)[:_LONGEST_WORDS]}"
    return ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _read_answers(folder: Path) -> tuple[dict[str, str] | None, list[ModelTrial]]:
    """Return what a process said of opening, None if it did not come that far, and of its calls."""
    lines = (folder / _TOLD).read_text().splitlines()
    if not lines:
        return None, []
    return decode_document(lines[0], dict[str, str]), [decode_document(line, ModelTrial) for line in lines[1:]]


# --- in the child


def _main(folder: str, first: str, end: str, until_whole: str) -> None:
    place = Path(folder)
    with (place / _TOLD).open("a") as file:

        def tell(what: object) -> None:
            file.write(encode_document(what).decode() + "\n")
            file.flush()  # the next step may end this process

        model = _open(place, tell)
        for number in range(int(first), int(end) if model else 0):
            with np.load(place / f"{number}.npz", allow_pickle=False) as arrays:
                feed = {name.removeprefix("="): arrays[name] for name in arrays}
            trial = _call(model, feed)
            tell(trial)
            if until_whole and trial.is_whole:
                break


def _open(place: Path, tell: Callable[[object], None]) -> Any:
    """Return the model, None if it does not open, and tell about it."""
    try:
        model = VariantSpec("", decode_document((place / _PLAN).read_bytes(), ModelPlan)).open()
    except MissingExtra as error:
        tell({"missing": str(error)})
        return None
    except HeadraceError as error:
        tell({"refused": str(error)})
        return None
    tell({})
    return model


def _call(model: Any, feed: Feed) -> ModelTrial:
    try:
        answer = model(feed)
    except Exception as error:  # engines raise their own types
        return ModelTrial(why=" ".join(str(error).split())[:_LONGEST_WORDS])
    named = answer if isinstance(answer, Mapping) else {"": np.asarray(answer)}
    return ModelTrial(shapes={name: list(np.shape(array)) for name, array in named.items()})


if __name__ == "__main__":
    _main(*sys.argv[1:])
