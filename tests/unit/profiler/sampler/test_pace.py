"""How often threads are looked at, counters' growth, and messages."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from headrace.profiler.sampler.messages import GilPlace, Report, SamplerSettings
from headrace.profiler.sampler.process import EAGER_SHARE, MAX_SHARE, TOTAL_SHARE, Pace, SamplerProcess
from headrace.profiler.sampler.rates import Rates, table_of


def test_cheap_looks_come_at_the_rate_asked_for() -> None:
    """Looks of 10 us at 200 Hz take 0.2 % of a core: no reason to look seldomer."""
    pace = Pace(200)
    pace.tell(0.01, 1000, 0.0)
    assert pace.period() == pytest.approx(1 / 200)


def test_dear_looks_come_seldomer() -> None:
    """However dear a look, all looks together stay within the share of a core."""
    pace = Pace(200)
    pace.tell(0.5, 1000, 0.0)
    assert 0.0005 / pace.period() == pytest.approx(MAX_SHARE)


def test_looks_leave_room_for_resources() -> None:
    """What reading resources costs is taken from what looks may cost, down to a floor."""
    pace = Pace(200)
    pace.tell(0.5, 1000, 0.003)
    assert 0.0005 / pace.period() + 0.003 == pytest.approx(TOTAL_SHARE)
    pace.tell(0.5, 1000, 0.5)
    assert 0.0005 / pace.period() == pytest.approx(0.002)


def test_a_young_run_is_looked_at_more_often() -> None:
    """Looks of 0.5 ms may take 1.5 % of a core then, whatever the resources cost; cheap ones come at the rate asked for."""
    pace = Pace(200)
    pace.is_eager = True
    pace.tell(0.5, 1000, 0.5)
    assert 0.0005 / pace.period() == pytest.approx(EAGER_SHARE)
    pace.is_eager = False
    assert 0.0005 / pace.period() == pytest.approx(0.002)


def test_a_long_run_is_thinned() -> None:
    """A tenth of the looks, unless they are dearer than that."""
    pace = Pace(200)
    pace.is_thinned = True
    assert pace.period() == pytest.approx(1 / 20)
    pace.tell(0.001, 1, 0.0)
    assert pace.period() == pytest.approx(0.001 / MAX_SHARE)


def test_waits_are_uneven_and_right_on_average() -> None:
    """Waits spread evenly over half to one and a half periods, so that no rhythm of 5 ms keeps step with them."""
    pace = Pace(200)
    waits = [pace.next_wait() * 200 for _ in range(1000)]
    assert sum(waits) / 1000 == pytest.approx(1.0, abs=0.01)
    assert 0.5 <= min(waits) < 0.51
    assert 1.49 < max(waits) <= 1.5
    assert all(sum(start <= wait < start + 0.1 for wait in waits) in range(95, 106) for start in (0.5, 0.9, 1.3))


def test_nothing_looked_at_says_nothing_of_costs() -> None:
    """CPU time without a look does not change the pace."""
    pace = Pace(100)
    pace.tell(1.0, 0, 0.0)
    assert pace.period() == pytest.approx(0.01)


def test_growth_needs_two_readings_that_go_up() -> None:
    """No rate at first, after a counter began anew, and without time between; then the difference over the interval."""
    rates = Rates()
    assert rates.growth("a", 100, 1.0) is None
    assert rates.growth("a", 110, 3.0) == 5.0
    assert rates.growth("b", 110, 3.0) is None
    assert rates.growth("a", 5, 4.0) is None
    assert rates.growth("a", 6, 5.0) == 1.0
    assert rates.growth("a", 7, 5.0) is None


def test_tables_of_words_and_numbers(tmp_path: Path) -> None:
    """Lines of another form are passed over."""
    file = tmp_path / "x"
    file.write_text("a 1\nb 2 3\nc x\n\nd 4\n")
    assert table_of(file) == {"a": 1, "d": 4}
    assert table_of(tmp_path / "none") == {}


@pytest.mark.parametrize("place", [None, GilPlace(device="fe:00", inode=3, offset=5, size=7)])
def test_messages_survive_their_encoding(place: GilPlace | None) -> None:
    """Settings and report come out as they went in."""
    settings = SamplerSettings(
        folder=Path("/x/ä"), process=3, resource_hertz=2.0, state_hertz=200.0, gil=place, gil_reason="r"
    )
    assert SamplerSettings.decode(settings.encode()) == settings
    report = Report(cpu_seconds=0.5, state_samples_per_second=None, lost_samples=2, not_measured={"gpu": "none"})
    assert Report.decode(report.encode()) == report


@pytest.mark.parametrize("text", ["", "null", "3", "{}", '{"cpu_seconds": 1, "what": 2}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    """Whatever a dying sampler wrote last raises one of two errors."""
    with pytest.raises((ValueError, TypeError)):
        Report.decode(text)


def test_opening_what_is_looked_at_is_no_cost_of_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty milliseconds for the files of new threads do not count: the first looks would come a second apart."""
    settings = SamplerSettings(folder=tmp_path, process=os.getpid(), resource_hertz=1.0, state_hertz=100.0, gil=None)
    sampler = SamplerProcess(settings, -1)
    began = time.process_time()

    def open_slowly(places: object) -> None:
        while time.process_time() < began + 0.02:
            pass

    monkeypatch.setattr(sampler._states, "set_threads", open_slowly)
    before = sampler._measure_looking_cpu()
    sampler._obey({"threads": []})
    assert time.process_time() - began >= 0.02
    assert sampler._measure_looking_cpu() - before < 0.01
