"""How many cameras a machine holds: the arithmetic by hand, and what does not tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import SettingsError
from headrace.base.goals import parse_slo
from headrace.base.records import SourceWork
from headrace.diagnose.replay import CannotReplay
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate
from headrace.tune import usable_rate
from headrace.tune.cameras import cameras_document

NOTES = {"video.decoded": 1000, "video.given": 400, "video.skipped_every": 600}


class Stages:
    """A recorded run whose stages do 100 frames a second, each in 10 ms, however many come."""

    is_open = False
    throughput = 100.0

    def __init__(
        self, notes: dict[str, int], cpu: float | None = 6.0, quota: float | None = None, work: SourceWork | None = None
    ) -> None:
        self.changes: list[Change] = []
        self.document = SimpleNamespace(
            run="first",
            headrace_version="1",
            pipeline="app:pipeline",
            plan_id="p",
            is_emulated=False,
            environment=SimpleNamespace(run_delay_share=0.0),
        )
        profile = SimpleNamespace(process_cpu_seconds=cpu, thread_cpu_seconds={"workers": 4.0, "profiling": 1.0})
        self.evidence = SimpleNamespace(
            summary={"counters": {"notes": notes}},
            profiling=profile,
            why_no_profile="the run was not profiled",
            info=SimpleNamespace(hardware=SimpleNamespace(num_cores=4, cpu_quota=quota), source_work=work),
        )

    def simulate(self, change: Change, *, seed: int = 0, num_jobs: int | None = None) -> Any:
        """Give each job its 10 ms."""
        rate = min(change.arrival_rate or 100.0, 100.0)
        return SimpleNamespace(throughput=rate, latencies=np.full(num_jobs or 100, 0.01))


@pytest.fixture(autouse=True)
def predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict what was recorded."""
    metric = SimpleNamespace(predicted=Estimate(100.0, 100.0, 100.0), refused="")
    document = SimpleNamespace(throughput=metric, warnings=())

    def predict(replay: Stages, change: Change, record: Any) -> Any:
        replay.changes.append(change)
        return document

    monkeypatch.setattr(usable_rate, "predict", predict)


def count(replay: Any, rate: float = 25.0, slo: str | None = None, headroom: float = 0.2) -> Any:
    """Return the document."""
    return cameras_document(replay, rate, None if slo is None else parse_slo(slo), headroom)


def test_the_stages_end_first() -> None:
    """5 s of CPU (the profiler's second apart) for 1,000 frames: 0.125 of a core. 80/s of 100 for 10/s each: 8 cameras."""
    found = count(Stages(NOTES))
    assert (found.used_rate, found.cpu_seconds_per_decoded_frame) == pytest.approx((10.0, 0.005))
    assert (found.by_cpu, found.by_stages, found.cameras) == pytest.approx((0.8 * 4 / 0.125, 8.0, 8))
    assert found.says[-1] == "This machine holds 8 cameras: its stages end first."
    assert found.warnings == ()


def test_the_cores_end_first() -> None:
    """A quota counts, not the cores of the machine; what is left over is no camera."""
    found = count(Stages(NOTES, quota=1.2), headroom=0.0)
    assert (found.by_cpu, found.by_stages, found.cameras) == pytest.approx((1.2 / 0.125, 10.0, 9))
    assert "its cores end first" in found.says[-1]
    assert "without the decoding of so many cameras" in found.warnings[-1]


def test_the_one_thread_that_decodes_a_clip_is_no_limit() -> None:
    """Cameras are decoded by a thread each: what calls of the source took of a clip is left out, and said."""
    clip = Stages(NOTES, work=SourceWork(does="decodes", is_decoding=True))
    assert "a camera has its own" in " ".join(count(clip).says)
    assert [set(change.speedups) for change in clip.changes] == [{"receiving"}]
    live = Stages(NOTES)
    assert "a camera has its own" not in " ".join(count(live).says)
    assert live.changes == [Change()]


def test_a_rate_is_no_share_of_what_other_cameras_send() -> None:
    """fps= took 10 of the 25 frames of what was profiled; of a camera that sends 10 it would take all."""
    by_rate = {"video.decoded": 1000, "video.given": 400, "video.skipped_fps": 600}
    assert any("fps=" in text for text in count(Stages(by_rate)).warnings)
    assert not any("fps=" in text for text in count(Stages(NOTES)).warnings)


def test_a_goal_that_holds_at_no_rate() -> None:
    """Is no number of cameras, and said."""
    found = count(Stages(NOTES), slo="p99=5ms")
    assert (found.cameras, found.by_stages, found.slo_met) == (None, None, False)
    assert "cannot be held at any rate" in found.refused
    assert count(Stages(NOTES), slo="p99=20ms").slo_met is True


@pytest.mark.parametrize(("replay", "said"), [
    (Stages({}), "not of video"),
    (Stages({**NOTES, "video.skipped_resumed": 5}), "resumed"),
    (Stages({**NOTES, "video.dropped_newer": 5}), "dropped 5 of 405 frames"),
    (Stages(NOTES, cpu=None), "the run was not profiled"),
])  # fmt: skip
def test_runs_that_do_not_tell(replay: Any, said: str) -> None:
    """A number would be wrong: no frame was decoded, or not all that were paid for were worked on."""
    with pytest.raises(CannotReplay, match=said):
        count(replay)


def test_rates_are_checked() -> None:
    """A camera sends some frames."""
    with pytest.raises(SettingsError, match="--cameras"):
        count(Stages(NOTES), rate=2000.0)
