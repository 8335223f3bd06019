"""What holds for every test."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

#: Large packages that only `make test-rest` installs.
_LARGE = {
    *(
        "accelerate",
        "av",
        "brevitas",
        "keras",
        "mlflow",
        "nncf",
        "pytorch_lightning",
        "ray",
        "torch",
        "torch_pruning",
        "transformers",
    ),
    "tritonclient",
}
_INTEGRATION = Path(__file__).parent / "integration"
#: Tests between two collections of everything.
_TESTS_PER_COLLECTION = 500
_num_tests = 0
#: Tests that have begun and not ended, of all processes.
_running: dict[str, None] = {}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep what was there before a test out of the garbage collector's sight.

    A run of a pipeline begins with a full collection. Here it would walk thousands of collected tests each time, which took
    half of the CPU time of some folders. What earlier tests left is collected now and then.
    """
    global _num_tests
    _num_tests += 1
    if _num_tests % _TESTS_PER_COLLECTION == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _forget_modules(request: pytest.FixtureRequest) -> Iterator[None]:
    """Forget the modules that a test wrote into its own folder: another test's `jobs.py` is another module."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None:
        _forget_modules_of(folder)


@pytest.fixture(autouse=True, scope="module")
def _forget_modules_of_fixtures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget also what the fixtures of a whole file of tests have loaded, where its last test has ended."""
    yield
    _forget_modules_of(tmp_path_factory.getbasetemp())


def _forget_modules_of(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(f"{folder}{os.sep}"):
            del sys.modules[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests `make test` leaves out, and give a test that measures, or counts on a real clock, two more tries.

    Other users of the machine spoil a measurement now and then, and the answer is then rightly "cannot be told"; and they may
    keep a worker from its core for longer than a loan of a second lasts. What is wrong is wrong three times; the summary has
    the traceback of whatever needed another try.
    """
    for item in items:
        measures = item.get_closest_marker("measures")
        if measures or item.get_closest_marker("real_clock"):
            item.add_marker(pytest.mark.flaky(reruns=2))
        is_integration = _INTEGRATION in item.path.parents and not item.get_closest_marker("smoke")
        if measures or is_integration or _uses_large_package(item):
            item.add_marker(pytest.mark.full)


def _uses_large_package(item: pytest.Item) -> bool:
    """Return whether a test, or the module that it is in, imports one of the large packages."""
    names = [
        value.__name__ for value in vars(getattr(item, "module", pytest)).values() if isinstance(value, ModuleType)
    ]
    code = getattr(getattr(item, "function", None), "__code__", None)
    if code is not None and "importorskip" in code.co_names:
        names += [value for value in code.co_consts if isinstance(value, str)]
    return any(name.partition(".")[0] in _LARGE for name in names)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test that continuous integration skips for want of a package or program fail there.

    A test that needs one of the large packages is marked `full`: it runs where they are installed.
    """
    report = yield
    if report.skipped and os.environ.get("CI") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if any(words in reason for words in ("could not import", "not installed", "pip install")):
            report.outcome = "failed"
            report.longrepr = f"{reason}: continuous integration must not skip it"
    return report


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note what runs; with several processes each of them says it to the one that reports."""
    _running[nodeid] = None


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Note what has ended."""
    _running.pop(nodeid, None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that were running when a crash, Ctrl-C or the time limit ended the run."""
    if _running:
        terminalreporter.write_sep("=", "running when the run ended")
        for nodeid in _running:
            terminalreporter.write_line(nodeid)
