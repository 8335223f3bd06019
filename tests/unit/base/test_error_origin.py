"""Where in the user's code an error comes from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.base.clock import SystemClock
from headrace.base.error_origin import MOST_FRAMES, Origin, find_origin, is_of_user, text_of
from headrace.base.errors import FetchRejected, ItemRejected, StageFailed, as_item_error
from headrace.base.records import Job
from headrace.base.units import parse_duration
from headrace.pipeline.group import Group
from headrace.pipeline.item import Item
from headrace.testing.faulty_stage import act

SECRET = "whsec_not_to_be_shown"


class Leaving(Exception):
    """Its message ends the program."""

    def __str__(self) -> str:
        raise SystemExit(3)


class Unshowable(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        """Raise."""
        raise TypeError("no text")


class Bare(ItemRejected):
    """A user's own error, whose `__init__` calls nobody's."""

    def __init__(self, text: str) -> None:
        self.text = text


def caught(call: object, *arguments: object) -> Exception:
    """Return what a call raises."""
    try:
        call(*arguments)  # type: ignore[operator]
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def preprocess(value: str) -> object:
    """Fail in a library, as users' code does."""
    password = SECRET
    return json.loads(value), password


def endless(depth: int) -> int:
    """Call itself without end."""
    return endless(depth + 1) + 1


def test_the_place_is_the_users_line() -> None:
    """The place is the innermost line of the user's own file; the traceback goes on into the library."""
    origin = find_origin(caught(preprocess, "{"))
    assert origin is not None
    assert (origin.error, origin.function) == ("JSONDecodeError", "preprocess")
    assert origin.file.endswith("test_error_origin.py")
    assert "return json.loads(value), password" in origin.traceback
    assert "raw_decode" in origin.traceback.splitlines()[-2]


def test_variables_are_never_shown() -> None:
    """What a frame held stays out."""
    origin = find_origin(caught(preprocess, "{"))
    assert origin is not None
    assert SECRET not in msgspec.json.encode(origin).decode()


def test_headraces_own_frames_are_cut() -> None:
    """Between the user's frames and where nothing but headrace failed there is nothing to show, unless asked for."""
    error = caught(lambda: act("!raise x"))
    origin = find_origin(error)
    assert origin is not None
    assert "faulty_stage" not in origin.traceback
    own_error = caught_by_headrace("!raise x")
    assert find_origin(own_error) is None
    own = find_origin(own_error, own_too=True)
    assert own is not None
    assert own.file.endswith("faulty_stage.py")


def test_who_caught_it_is_not_its_place() -> None:
    """A function without frames of Python fails in the frame that called it, which says nothing to anybody."""
    assert find_origin(caught_by_headrace(3), own_too=True) is None


def caught_by_headrace(value: object) -> BaseException:
    """Return what a stage function raises on a value, as the group that calls it catches it: with headrace's frames alone."""
    stage = hr.stage("work", act if isinstance(value, str) else len)  # type: ignore[arg-type]
    item = Item(Job("a", b""), value, ())
    Group([stage], [stage.function], SystemClock(), 1).run([item], None)  # type: ignore[attr-defined]
    cause = item.error and item.error.__cause__
    assert cause is not None
    while cause.__traceback__ is not None and not cause.__traceback__.tb_frame.f_code.co_name.startswith("_run"):
        cause.__traceback__ = cause.__traceback__.tb_next
    return cause


def test_a_recursion_is_cut() -> None:
    """A traceback of a thousand frames is shown by its first and its last."""
    origin = find_origin(caught(endless, 0))
    assert origin is not None
    assert origin.traceback.count("File ") == MOST_FRAMES
    assert "more frames" in origin.traceback


def test_whose_error_it_is() -> None:
    """What was raised in a library is the fault of whoever called it."""
    assert is_of_user(caught(preprocess, "{"))
    assert not is_of_user(caught(parse_duration, "nonsense"))


def test_an_error_without_text_is_shown_by_its_type() -> None:
    """A `__str__` that raises, or says nothing, costs the text alone."""
    assert text_of(Unshowable()) == "Unshowable (its message cannot be shown: TypeError in __str__)"
    assert text_of(Leaving()) == "Leaving (its message cannot be shown: SystemExit in __str__)"
    assert text_of(MemoryError()) == "MemoryError"
    error = as_item_error(caught(lambda: (_ for _ in ()).throw(Unshowable())))
    assert isinstance(error, StageFailed)
    assert "Unshowable" in str(error.locate("process", "a"))
    assert "test_error_origin.py:" in error.reason


@pytest.mark.parametrize("error", [Bare("x"), ItemRejected(None), ItemRejected(7)])  # type: ignore[arg-type]
def test_users_own_item_errors_can_always_be_shown(error: ItemRejected) -> None:
    """One made without a text, or with something else, has a reason nevertheless."""
    error.locate("process", "a")
    assert str(error).startswith("process: item a: ")
    assert error.code


def test_the_frames_can_be_left_out() -> None:
    """Repeated errors are kept by type and place."""
    origin = Origin("ValueError", "jobs.py", 3, "process", "  File ...")
    assert origin.brief() == Origin("ValueError", "jobs.py", 3, "process")
    assert origin.place == "jobs.py:3"
    assert b"traceback" not in msgspec.json.encode(origin.brief())


def test_headrace_behind_a_link_is_no_code_of_the_users(tmp_path: Path) -> None:
    """As in a home that lies on another disk: wrong usage is said to be that, and not that the user's code ended it."""
    (tmp_path / "home").symlink_to(Path(hr.__file__).parent.parent)
    words = ["deploy", "jobs.py:pipeline", "-o", "deploy", "--replicas", "-1,2"]
    program = f"import sys; from headrace.cli import main; sys.exit(main({words!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(tmp_path / "home")}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert "code of yours" not in ended.stderr


@pytest.mark.parametrize("is_own", [True, False])
def test_the_own_error_of_a_future_has_no_place(*, is_own: bool) -> None:
    """What one thread reads for several of them: the frames of the standard library lead nowhere, but to what is unknown."""
    future: Future[bytes] = Future()
    future.set_exception(FetchRejected("object.changed: it was replaced") if is_own else KeyError("a"))
    headrace: dict[str, Any] = {}
    exec(compile("def wait(future): future.result()", f"{Path(hr.__file__).parent}/wait.py", "exec"), headrace)
    with pytest.raises((FetchRejected, KeyError)) as error:
        headrace["wait"](future)
    assert error.tb.tb_next is not None
    failure = as_item_error(error.value.with_traceback(error.tb.tb_next))
    assert (failure.origin is None) == is_own
