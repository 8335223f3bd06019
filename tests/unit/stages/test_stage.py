"""What a stage is, and stages that only take time."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from headrace.base.errors import SettingsError
from headrace.base.plan import StageDefaults
from headrace.stages.emulated import emulated
from headrace.stages.stage import Fan, Joined, Stage, fan_out, join, stage


def shout(value: str) -> str:
    """A user's function."""
    return value.upper()


def test_a_function_becomes_a_stage(make_context: Any) -> None:
    """The stage calls the function with each value, and tells what the Plan needs to know."""
    made = stage("shout", shout, kind="io")
    assert made.open(make_context())("a") == "A"
    assert made.defaults() == StageDefaults(name="shout", kind="io", executor="thread", workers=None, task="")


def test_a_class_becomes_a_stage(make_context: Any) -> None:
    """What a class says of itself is what the Plan's resolution sees."""

    class Slow(Stage):
        kind = "io"
        executor = "process"
        workers = 3

        def open(self, context: Any) -> Any:
            return shout

    assert Slow("slow", task="t").defaults() == StageDefaults(
        name="slow", kind="io", executor="process", workers=3, task="t"
    )


def test_fan_out_and_join(make_context: Any) -> None:
    """One value is cut into many, and their results are put together with what was kept."""
    cut = fan_out("words", lambda text: Fan(text.split(), keep=len(text)))
    glue = join("again", lambda joined: (joined.keep, " ".join(joined.results)))
    fan = cut.open(make_context())("a b")
    assert (cut.role, glue.role) == ("fan_out", "join")
    assert glue.open(make_context())(Joined(fan.keep, [shout(child) for child in fan.children])) == (3, "A B")


def test_a_stage_without_open_says_so(make_context: Any) -> None:
    """A subclass that forgot `open` is named."""

    class Forgetful(Stage):
        pass

    with pytest.raises(NotImplementedError, match=r"Forgetful must define open\(\)"):
        Forgetful("x").open(make_context())


def test_stages_are_shown_by_name() -> None:
    """Kind of stage and name are what a reader of a message needs."""
    assert repr(stage("shout", shout)) == "FunctionStage('shout')"


def test_stages_can_be_sent_to_another_process(make_context: Any) -> None:
    """A stage is a description that pickles."""
    copy = pickle.loads(pickle.dumps(stage("shout", shout)))
    assert copy.open(make_context())("a") == "A"


def test_emulated_takes_its_time_and_passes_the_value(make_context: Any) -> None:
    """At least the service time goes by."""
    function = emulated("wait", seconds=0.01, kind="io").open(make_context())
    start = time.monotonic()
    assert function("x") == "x"
    assert time.monotonic() - start >= 0.01


def test_emulated_takes_its_time_from_the_plan(make_context: Any) -> None:
    """The option goes before the program, and may carry a unit."""
    function = emulated("wait", seconds=3600).open(make_context(options={"seconds": 0.01}))
    start = time.monotonic()
    assert function("x") == "x"
    assert time.monotonic() - start >= 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"second": 1}, r"\[stages\.wait\.options\]: unknown key 'second'\. Did you mean 'seconds'\?"),
        ({"seconds": "long"}, r"\[stages\.wait\.options\]: seconds = 'long'"),
        ({"seconds": -1}, r"seconds = -1"),
    ],
)
def test_emulated_options_are_checked(make_context: Any, options: dict[str, Any], message: str) -> None:
    """Unknown and impossible options are errors."""
    with pytest.raises(SettingsError, match=message):
        emulated("wait", seconds=0).open(make_context(options=options))


def test_emulated_time_is_not_negative(make_context: Any) -> None:
    """A negative time in the program is told before the first item."""
    with pytest.raises(SettingsError, match="seconds = -1"):
        emulated("wait", seconds=-1).open(make_context())
