"""What watches a run from the command line: each kind adds to it, in workers and beside them."""

import argparse
import os
import sys
from types import ModuleType
from typing import Any

import pytest

import headrace as hr
from headrace.base.observer import Observer
from headrace.base.plan import Plan
from headrace.cli import companions
from headrace.cli.companions import BesideWorkers, Companion, add_companion_arguments, beside_workers, companion_options


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kind named `watch_test` with an option of its own, alone in the list."""
    module: Any = ModuleType("headrace.cli.watch_test")
    module.closed_in, module.deaths = [], []
    module.add_arguments = lambda parser: parser.add_argument("--test")
    module.open_companion = lambda args, pipeline, plan, slot: Companion(observers=[Observer()]) if args.test else None
    module.open_beside_workers = lambda args: BesideWorkers(
        note_death=module.deaths.append, close=lambda: module.closed_in.append(os.getpid())
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(companions, "KINDS", ("watch_test",))
    return module


def _pipeline() -> hr.Pipeline:
    return hr.Pipeline(hr.items([1]), stages=[hr.stage("same", lambda number: number)], delivery=hr.collect())


def test_an_option_adds_to_the_run(kind: Any) -> None:
    """What is not asked for adds nothing."""
    parser = argparse.ArgumentParser()
    add_companion_arguments(parser)
    quiet = companion_options(parser.parse_args([]), _pipeline(), Plan())
    assert quiet == {"observers": [], "instruments": [], "watch": None}
    assert len(companion_options(parser.parse_args(["--test", "x"]), _pipeline(), Plan())["observers"]) == 1


def test_only_the_supervisor_closes(kind: Any) -> None:
    """A worker is a fork that leaves by the same way."""
    supervisor = os.getpid()
    with beside_workers(argparse.Namespace()):
        child = os.fork()
    if os.getpid() != supervisor:
        os._exit(len(kind.closed_in))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kind.closed_in == [supervisor]
