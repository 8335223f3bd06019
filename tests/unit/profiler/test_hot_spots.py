"""Counting one stage's calls with cProfile, and the files that come of it."""

from __future__ import annotations

import cProfile
import json
import pickle
import pstats
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import HeadraceError, SettingsError
from headrace.profiler.hot_spots import CProfileInstrument, Frame, counting, speedscope


def instrument_of(stage: str, folder: Path) -> CProfileInstrument:
    """Return an instrument that counts on every Python: nothing but the test's own thread runs."""
    return CProfileInstrument(stage, folder, mixes_threads=False)


def check_speedscope(content: bytes) -> dict[str, Any]:
    """Check the rules of speedscope's file format for sampled profiles, and return the document."""
    document: dict[str, Any] = json.loads(content, parse_constant=pytest.fail)
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    for frame in frames:
        assert isinstance(frame["name"], str)
        assert set(frame) <= {"name", "file", "line", "col"}
        assert isinstance(frame.get("file", ""), str)
        assert isinstance(frame.get("line", 1), int)
        assert isinstance(frame.get("col", 1), int)
    assert len({json.dumps(frame) for frame in frames}) == len(frames)
    assert 0 <= document["activeProfileIndex"] < max(1, len(document["profiles"]))
    for profile in document["profiles"]:
        assert profile["type"] == "sampled"
        assert profile["unit"] in {"bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds"}
        assert isinstance(profile["name"], str)
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= index < len(frames) for stack in profile["samples"] for index in stack)
        assert all(weight >= 0 for weight in profile["weights"])
        assert profile["endValue"] - profile["startValue"] == pytest.approx(sum(profile["weights"]))
    return document


def leaf(number: int) -> int:
    """Do some work."""
    return sum(range(number))


def twice(number: int) -> int:
    """Call leaf twice."""
    return leaf(number) + leaf(number)


def stage(number: int) -> int:
    """Call leaf once, and twice."""
    return twice(number) + leaf(number)


def factorial(number: int) -> int:
    """Call itself."""
    return 1 if number <= 1 else number * factorial(number - 1)


def fail(number: int) -> int:
    """Raise."""
    raise ZeroDivisionError(leaf(number))


def test_every_call_is_counted(tmp_path: Path) -> None:
    """Calls of the stage and within it are counted exactly; shares of all places add up to one."""
    instrument = instrument_of("decode", tmp_path / "new" / "folder")
    call = instrument.wrap("decode", "cpu", stage)
    assert [call(n) for n in range(50)] == [stage(n) for n in range(50)]
    found = instrument.collect()
    calls = {spot.function: spot.calls for spot in found.top}
    assert (calls["stage"], calls["twice"], calls["leaf"]) == (50, 50, 150)
    assert found.num_calls == 50
    assert sum(spot.self_share for spot in found.top) == pytest.approx(1)
    [whole] = [spot for spot in found.top if spot.function == "stage"]
    assert whole.total_share == pytest.approx(1)
    assert (Path(whole.file), whole.line) == (Path(__file__), stage.__code__.co_firstlineno)
    assert not any("Profiler" in spot.function for spot in found.top)


def test_files_are_what_tools_read(tmp_path: Path) -> None:
    """The pstats file opens in pstats, the speedscope file keeps its format's rules, the record is the record."""
    instrument = instrument_of("faces/decode", tmp_path)
    call = instrument.wrap("faces/decode", "cpu", stage)
    for _ in range(20):
        call(1000)
    found = instrument.collect()
    assert found.files == ("faces_decode.pstats", "faces_decode.speedscope.json", "faces_decode.json")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(found.files)
    stats: Any = pstats.Stats(str(tmp_path / "faces_decode.pstats"))
    assert {key[2] for key in stats.stats} >= {"stage", "twice", "leaf"}
    document = check_speedscope((tmp_path / "faces_decode.speedscope.json").read_bytes())
    [profile] = document["profiles"]
    assert profile["endValue"] == pytest.approx(found.seconds)
    names = [frame["name"] for frame in document["shared"]["frames"]]
    stacks = {tuple(names[index] for index in stack) for stack in profile["samples"]}
    assert {("stage",), ("stage", "twice"), ("stage", "leaf"), ("stage", "twice", "leaf")} <= stacks
    record = json.loads((tmp_path / "faces_decode.json").read_bytes())
    assert record["schema"] == "headrace.hot_spots/1"
    assert record["num_calls"] == 20
    assert record["num_samples"] is None


def test_a_function_called_from_two_places_is_divided_by_their_time(tmp_path: Path) -> None:
    """Of what `leaf` calls, each caller of `leaf` gets its share: stacks add up to what was counted."""
    leaf_, inner, one, two = (("f", line, name) for line, name in enumerate(["leaf", "inner", "one", "two"], 1))
    counts = counting._Counts
    table = {
        one: (counts(1, 1.0, 7.0), {}),
        two: (counts(1, 2.0, 5.0), {}),
        leaf_: (counts(3, 3.0, 9.0), {one: counts(2, 2.0, 6.0), two: counts(1, 1.0, 3.0)}),
        inner: (counts(3, 6.0, 6.0), {leaf_: counts(3, 6.0, 6.0)}),
    }
    roots = {root: seconds for root, (_, seconds) in counting._roots(table).items()}
    stacks = counting._stacks(table, roots, 12.0)
    assert {tuple(frame.name for frame in stack): seconds for stack, seconds in stacks.items()} == {
        ("one",): pytest.approx(1),
        ("two",): pytest.approx(2),
        ("one", "leaf"): pytest.approx(2),
        ("two", "leaf"): pytest.approx(1),
        ("one", "leaf", "inner"): pytest.approx(4),
        ("two", "leaf", "inner"): pytest.approx(2),
    }


def test_recursion_ends(tmp_path: Path) -> None:
    """A stage that calls itself is one root whose time is its own."""
    instrument = instrument_of("decode", tmp_path)
    call = instrument.wrap("decode", "cpu", factorial)
    assert {call(30) for _ in range(10)} == {factorial(30)}
    found = instrument.collect()
    assert found.num_calls == 10
    [spot] = [spot for spot in found.top if spot.function == "factorial"]
    assert spot.calls == 300
    assert spot.total_share == pytest.approx(1)
    [profile] = check_speedscope((tmp_path / "decode.speedscope.json").read_bytes())["profiles"]
    assert profile["endValue"] == pytest.approx(found.seconds)


def test_workers_are_merged(tmp_path: Path) -> None:
    """What several workers counted, in threads and in processes, is one result; no part is left behind."""
    instrument = instrument_of("decode", tmp_path)
    for _ in range(3):
        instrument.wrap("decode", "cpu", stage)(10)
    for number in range(2):
        profile = cProfile.Profile()
        part = counting._Part(profile, tmp_path / f".decode-{number}-0.part")
        for _ in range(4):
            counting._count_in_child(profile, part, stage, 10)
        part.write()
    found = instrument.collect()
    assert found.num_calls == 3 + 2 * 4
    assert found.workers == ("3 in threads, 2 in processes",)
    assert not list(tmp_path.glob(".*"))


def test_a_part_is_there_before_the_end(tmp_path: Path) -> None:
    """A process that is killed has left what it counted until then."""
    profile = cProfile.Profile()
    part = counting._Part(profile, tmp_path / "new" / ".decode-1-0.part")
    counting._count_in_child(profile, part, stage, 10)
    assert (tmp_path / "new" / ".decode-1-0.part").stat().st_size > 0


def test_parts_of_an_earlier_run_are_not_counted(tmp_path: Path) -> None:
    """What a run that was killed left behind goes when the next one begins; other stages' stays."""
    for name in (".decode-1-0.part", ".other-1-0.part"):
        (tmp_path / name).write_bytes(b"old")
    instrument = instrument_of("decode", tmp_path)
    instrument.wrap("decode", "cpu", stage)(1)
    assert instrument.collect().num_calls == 1
    assert [file.name for file in tmp_path.glob(".*")] == [".other-1-0.part"]


def test_other_stages_are_left_alone(tmp_path: Path) -> None:
    """Their calls are not even wrapped."""
    assert instrument_of("decode", tmp_path).wrap("fetch", "io", stage) is stage


def test_a_failing_call_fails_and_counts(tmp_path: Path) -> None:
    """What a stage raises goes on, and the counting ends with the call."""
    instrument = instrument_of("decode", tmp_path)
    call = instrument.wrap("decode", "cpu", fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            call(5)
    stage(5)
    found = instrument.collect()
    assert found.num_calls == 2
    assert "twice" not in {spot.function for spot in found.top}


def test_nothing_counted_is_an_error(tmp_path: Path) -> None:
    """A stage that no item came to has no hot spots, and the message says what may be wrong."""
    with pytest.raises(HeadraceError, match="no call of stage decode was counted"):
        instrument_of("decode", tmp_path).collect()


def test_a_python_whose_cprofile_mixes_threads_is_refused(tmp_path: Path) -> None:
    """Where cProfile counts all threads as one, only processes are counted; the message says what to do."""
    with pytest.raises(SettingsError, match=r"decode\.executor=process"):
        CProfileInstrument("decode", tmp_path, mixes_threads=True).wrap("decode", "cpu", stage)


def test_a_copy_for_another_process_is_empty(tmp_path: Path) -> None:
    """The instrument can be sent to a process; what was counted stays where it was."""
    instrument = instrument_of("decode", tmp_path)
    instrument.wrap("decode", "cpu", stage)(1)
    copy = pickle.loads(pickle.dumps(instrument))
    assert (copy.stage, copy.folder) == ("decode", tmp_path)
    with pytest.raises(HeadraceError):
        copy.collect()
    assert instrument.collect().num_calls == 1


@pytest.mark.parametrize("name", ['"quoted"', "a;b", "line\nbreak", "\udcff", "猫"])
def test_speedscope_takes_any_name(name: str) -> None:
    """Functions and files may be called anything."""
    document = check_speedscope(speedscope(name if name != "\udcff" else "x", {"w": {(Frame(name, name, 1),): 0.5}}))
    assert document["profiles"][0]["weights"] == [0.5]


def test_speedscope_without_samples() -> None:
    """Nothing is a valid file too."""
    check_speedscope(speedscope("empty", {}))
    check_speedscope(speedscope("empty", {"w": {}}))
