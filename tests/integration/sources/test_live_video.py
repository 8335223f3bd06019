"""Frames of live streams as jobs: the newest ones, from all alike, each drop counted, whatever the sender does."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import HeadraceError, SettingsError, SourceError
from headrace.base.plan import Plan, SourcePlan
from headrace.base.records import DELIVERED, Job
from headrace.cli.loading import choose_source, parse_source
from headrace.diagnose import profile_document
from headrace.pipeline.dry_run import dry_run
from headrace.runs.reader import read_run
from headrace.sources.frames import Choice
from headrace.sources.live_stream import LiveFrame, LiveStream, TurnPatience
from headrace.sources.live_video import LiveVideo

av = pytest.importorskip("av")
senders = pytest.importorskip("benchmarks.video.senders")
cameras = senders.cameras


def clip(path: Path, count: int = 20, size: tuple[int, int] = (64, 48)) -> bytes:
    """Return an MPEG transport stream of 25 frames per second, a keyframe at each fifth, each frame of its own grey."""
    with av.open(str(path), "w", format="mpegts") as container:
        stream: Any = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.max_b_frames = 5, 0
        stream.options = {"tune": "zerolatency", "sc_threshold": "0"}
        for number in range(count):
            image = np.full((size[1], size[0], 3), 10 + number % 100 * 2, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    return path.read_bytes()


class Sender:
    """A camera behind TCP: sends `data` to each who connects, and then does what `then` says: `close` or `hang`."""

    def __init__(self, data: bytes, then: str = "close", pieces: int = 1, pause: float = 0.0) -> None:
        self.data, self.then, self.pieces, self.pause = data, then, pieces, pause
        self.num_connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._socket.getsockname()[1]}"
        self._closing = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections, and end those that hang."""
        self._closing.set()
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.num_connections += 1
                threading.Thread(target=self._send, args=(connection,), daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        size = -(-len(self.data) // self.pieces)
        with connection, contextlib.suppress(OSError):
            for at in range(0, len(self.data), size):
                connection.sendall(self.data[at : at + size])
                if self._closing.wait(self.pause):
                    return
            if self.then == "hang":
                self._closing.wait()


@pytest.fixture
def sender() -> Iterator[Callable[..., Sender]]:
    """Return what starts senders; they are closed at the end."""
    started: list[Sender] = []

    def start(*args: Any, **options: Any) -> Sender:
        started.append(Sender(*args, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def balance(source: LiveVideo) -> Counter[str]:
    """Return the counts of all streams together; what was decoded is what was given, skipped, dropped or waits in a slot."""
    total: Counter[str] = Counter()
    for counts in source.counts().values():
        left = counts.get("decoded", 0) - sum(num for name, num in counts.items() if name != "decoded")
        assert 0 <= left <= 1, counts
        total.update(counts)
    return total


def run(
    source: Any, function: Callable[[Any], Any] = lambda image: image.shape, **options: Any
) -> tuple[hr.Result, Any]:
    """Return how a run went, and {id: result}."""
    kept = hr.collect()
    result = hr.run(hr.Pipeline(source, stages=[hr.stage("see", function)], delivery=kept), **options)
    return result, dict(kept.results)


def take(source: LiveVideo, until: Callable[[], bool], seconds: float = 20.0) -> list[Job]:
    """Receive and settle until something holds."""
    jobs: list[Job] = []
    give_up_at = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < give_up_at, source.notes()
        for job in source.receive(10, 0.05) or []:
            jobs.append(job)
            job.settle(DELIVERED)
    return jobs


def test_frames_of_a_stream_are_jobs(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """Each knows its stream and its number; what was not taken in time is counted."""
    camera = sender(clip(tmp_path / "a.ts"), pieces=20, pause=0.01)
    source = hr.live_video({"gate": camera.address}, size=(32, 24), ends=True)
    result, answers = run(source)
    assert set(answers.values()) == {(24, 32, 3)}
    assert result.counters.delivered == len(answers) == balance(source)["given"] > 0
    assert balance(source)["decoded"] == 20
    assert all(id_.startswith("gate#20") for id_ in answers)
    notes = result.counters.notes
    assert (notes["video.decoded"], notes["video.streams"], notes["video.opened"]) == (20, 1, 1)


@pytest.mark.parametrize(("device", "said"), [
    ("/dev/null", "Inappropriate ioctl for device"), ("/dev/no-camera", "No such file or directory"),
])  # fmt: skip
def test_what_is_no_camera(device: str, said: str) -> None:
    """A device is asked whether it is a camera, and a file is not read as video; the error says what is wrong with it."""
    with pytest.raises(SourceError, match=f"no stream brought a frame: {device[1:]}: {said}"):
        run(hr.live_video(f"v4l2://{device}", ends=True))


def test_addresses_of_cameras() -> None:
    """On the command line too; two strokes would name a host."""
    assert parse_source("v4l2:///dev/video0#fps=5", drain=False).where.startswith("the frames of v4l2:///dev/video0,")
    with pytest.raises(SettingsError, match="v4l2:///dev/video0, with three strokes"):
        hr.live_video("v4l2://dev/video0")


def test_still_frames_are_counted(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """With `motion`, a picture that is the same everywhere is given for a second, whatever its grey, and in its region."""
    camera = sender(clip(tmp_path / "a.ts", 60), pieces=60, pause=0.02)
    source = hr.live_video({"gate": camera.address}, motion=0.01, region=(0, 0.5, 1, 1), ends=True)
    result, answers = run(source)
    counts = balance(source)
    assert set(answers.values()) == {(24, 64, 3)}
    assert counts["decoded"] == 60
    assert counts["skipped_still"] == 60 - 25
    assert result.counters.notes["video.skipped_still"] == 35


class Turns(threading.Semaphore):
    """One turn, or none at all; counts those that were taken."""

    def __init__(self, turns: int) -> None:
        super().__init__(turns)
        self.num_taken = 0

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take it."""
        has_turn = super().acquire(blocking, timeout)
        self.num_taken += has_turn
        return has_turn


@pytest.mark.parametrize("turns", [1, 0])
def test_streams_take_turns_to_decode(tmp_path: Path, sender: Callable[..., Sender], turns: int) -> None:
    """Each packet, a damaged one too, is decoded in a turn, which is given back; without any turn, all are decoded still."""
    data = bytearray(clip(tmp_path / "a.ts"))
    for at in range(188 * 20 + 100, len(data) - 188, 188 * 7):
        data[at : at + 8] = b"damaged!"
    camera = sender(bytes(data))
    shared, frames, ended = Turns(turns), [], [threading.Event(), threading.Event()]
    for event in ended:

        def offer(frame: LiveFrame, reason: str) -> None:
            frames.append(frame.number)

        stream = LiveStream(
            "gate",
            camera.address,
            Choice(),
            options={},
            offer=offer,
            ended=event.set,
            device=None,
            stays=False,
            patience=60.0,
            turns=shared,
            freed=bool,
        )
        stream.start()
    assert all(event.wait(120) for event in ended)
    assert len(frames) >= 2
    assert len(frames) == 2 * (max(frames) + 1)
    assert shared.num_taken >= len(frames) * turns
    assert shared._value == turns


def test_a_stream_that_is_behind_waits_for_no_turn() -> None:
    """Once every packet was there already for 0.2 s; it waits again when it has come up with its sender."""
    patience = TurnPatience(10.0)
    assert patience.after_read(0.0, 10.1) > 0
    assert patience.after_read(0.0, 10.3) == 0
    assert patience.after_read(0.001, 11.0) == 0
    assert patience.after_read(0.01, 11.1) > 0
    assert patience.after_read(0.0, 11.2) > 0


def test_a_slow_pipeline_gets_the_newest_frames(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """The stream is drained all the same; each frame that is given is newer than all that were decoded before it was taken."""
    camera = sender(clip(tmp_path / "a.ts", 60), pieces=60, pause=0.02)
    source = hr.live_video({"gate": camera.address}, ends=True)
    source.open(SourcePlan())
    while source.counts()["gate"].get("decoded", 0) < 60:
        time.sleep(0.01)
    (job,) = source.receive(10, 1.0) or []
    assert (job.sequence, job.stream, job.attributes["frame"]) == (59, "gate", 59)
    counts = balance(source)
    assert (counts["decoded"], counts["given"], counts["dropped_newer"] + counts["skipped_opening"]) == (60, 1, 59)
    assert counts["dropped_newer"] > 0
    assert job.sent_at is not None
    assert abs(job.sent_at - time.time()) < 60
    assert source.receive(10, 0.0) == []  # one is in flight
    job.settle(DELIVERED)
    assert source.receive(10, 1.0) is None
    source.close()


def test_streams_share_what_the_pipeline_does(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """A stream that brings five times as many frames gets no more than its share while the others bring enough."""
    data = clip(tmp_path / "a.ts", 100)
    fast, slow = sender(data, "hang", 100, 0.004), sender(data, "hang", 100, 0.02)
    source = hr.live_video({"fast": fast.address, "slow": slow.address})
    source.open(SourcePlan(max_in_flight=2))
    given: Counter[str] = Counter()
    while min(given["fast"], given["slow"]) < 8:
        for job in source.receive(1, 1.0) or []:
            given[str(job.stream)] += 1
            time.sleep(0.03)  # slower than both
            job.settle(DELIVERED)
    source.close()
    balance(source)
    assert given["fast"] <= 2 * given["slow"] + 6  # five times as many, else; and some before the slow one was there


def test_a_frame_that_is_decoded_after_the_end_counts_no_more(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """A thread that ends late changes nothing of what was written."""
    source = hr.live_video({"gate": sender(clip(tmp_path / "a.ts", 60), then="hang").address})
    source.open(SourcePlan())
    while not source.counts()["gate"].get("decoded", 0):
        time.sleep(0.01)
    source.stop()
    before, (tally,) = balance(source), source.tallies()
    record = tally.record(0.0)
    source._offer(source._cameras[0], LiveFrame(60, None, time.monotonic_ns(), time.time(), 2.4), "")
    assert (balance(source), tally.record(0.0)) == (before, record)
    source.close()


def test_a_run_folder_keeps_what_became_of_each_stream(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """Frames by what became of them, ages of answers, jitter and stalls: as the page shows them while it runs."""
    data = clip(tmp_path / "a.ts", 100)
    even, gone = sender(data, pieces=100, pause=0.02), sender(data, then="hang")
    source = hr.live_video({"even": even.address, "gone": gone.address}, every=2)
    result, _ = run(source, output=tmp_path / "run", limit=30)
    folder = read_run(tmp_path / "run")
    kept = {record.name: record for record in folder.info.streams}
    assert kept == {tally.name: tally.record(0.0) for tally in source.tallies()}
    record = kept["even"]
    skipped = record.counts["skipped_every"] + record.counts.get("skipped_opening", 0)
    dropped = sum(number for what, number in record.counts.items() if what.startswith("dropped"))
    assert record.counts["decoded"] == skipped + dropped + record.counts["given"]
    assert sum(one.ended.get("delivered", 0) for one in kept.values()) == result.counters.delivered
    assert record.age_p50_seconds is None or 0 < record.age_p50_seconds < 60
    assert record.jitter_p50_seconds is not None
    (account, _) = profile_document(folder).streams
    assert (account.came, account.wanted) == (record.counts["decoded"], record.counts["decoded"] - skipped)
    of_clip = read_run(clips_run(tmp_path))
    assert of_clip.info.streams == []
    for one in (folder, of_clip):
        assert (one.info.unit, set(one.spans()["unit"].to_pylist())) == ("frame", {"frame"})


def clips_run(tmp_path: Path) -> Path:
    """Return the folder of a run over a clip, which is no live stream."""
    run(hr.video(tmp_path / "a.ts"), output=tmp_path / "clip")
    return tmp_path / "clip"


def test_a_frame_that_is_too_old_reaches_nothing(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """In the slot it is dropped; behind that, the job's deadline ends it before the next stage."""
    camera = sender(clip(tmp_path / "a.ts", 10), "hang")
    source = hr.live_video({"gate": camera.address}, max_age=0.2, patience=1)
    source.open(SourcePlan())
    while source.counts()["gate"].get("decoded", 0) < 9:  # the decoder may hold the last one
        time.sleep(0.01)
    time.sleep(0.25)
    assert source.receive(10, 0.0) == []
    assert balance(source)["dropped_late"] >= 1
    source.close()
    camera = sender(clip(tmp_path / "b.ts", 50), pieces=50, pause=0.02)
    source = hr.live_video({"gate": camera.address}, max_age=0.2, ends=True)
    kept = hr.collect()
    stages = [hr.stage("slow", lambda image: time.sleep(0.25)), hr.stage("seen", lambda _: 1)]
    result = hr.run(hr.Pipeline(source, stages=stages, delivery=kept), plan=Plan())
    assert not kept.results
    assert result.counters.rejected == balance(source)["given"] > 0


def test_a_stream_that_breaks_off_comes_back(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """It is opened again, decoding begins at a keyframe, numbers go on, and threads do not pile up."""
    whole = clip(tmp_path / "a.ts", 20)
    camera = sender(whole[: len(whole) * 2 // 3])
    source = hr.live_video({"gate": camera.address})
    source.open(SourcePlan())
    threads = threading.active_count()
    jobs = take(source, lambda: camera.num_connections >= 8)
    assert threading.active_count() <= threads + 4  # the sender has one for each that it has not closed yet
    source.close()
    numbers = [job.sequence for job in jobs]
    assert numbers == sorted(set(numbers))
    assert source.notes()["video.lost"] >= 7
    balance(source)


def test_a_stream_that_hangs_does_not_hold_up_the_others(
    tmp_path: Path, sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    """It is given up after a while and opened again; one that nobody answers for is told of by its name, without secrets."""
    data = clip(tmp_path / "a.ts", 50)
    frozen, well = sender(data, "hang"), sender(data, "hang", 50, 0.05)
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    streams = {"frozen": frozen.address, "well": well.address, "off": f"http://me:hidden@127.0.0.1:{port}/v"}
    source = hr.live_video(streams, patience=0.3)
    source.open(SourcePlan())
    jobs = take(source, lambda: frozen.num_connections >= 2 and source.counts()["well"].get("given", 0) >= 10)
    source.close()
    assert Counter(job.stream for job in jobs)["well"] >= 10
    told = [record.getMessage() for record in caplog.records if "does not come" in record.getMessage()]
    assert any(text.startswith("video: off does not come: ") for text in told)
    assert "video: frozen does not come: nothing came for 0.3 s; it is tried again" in told
    assert len(told) == 2  # each is told of once a minute
    assert "hidden" not in caplog.text


def test_garbage_and_changing_sizes(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """What cannot be decoded is counted and passed by; a frame of another size is a frame."""
    small, large = clip(tmp_path / "a.ts", 20), clip(tmp_path / "b.ts", 20, (128, 96))
    noise = np.random.default_rng(1).integers(0, 256, 188 * 50, np.uint8).tobytes()
    camera = sender(small + noise + large + noise, "hang", 40, 0.02)
    source = hr.live_video({"gate": camera.address})
    source.open(SourcePlan())
    shapes: set[Any] = set()

    def both() -> bool:
        return len(shapes) == 2

    give_up_at = time.monotonic() + 20
    while not both() and time.monotonic() < give_up_at:
        for job in source.receive(10, 0.05) or []:
            shapes.add(job.payload.shape if isinstance(job.payload, np.ndarray) else None)
            job.settle(DELIVERED)
    source.close()
    assert shapes == {(48, 64, 3), (96, 128, 3)}
    balance(source)


def test_a_stream_that_is_added_on_the_way(late_sound: Path, sender: Callable[..., Sender]) -> None:
    """PyAV ends such a connection with an IndexError; one that may end has ended, and is not begun again."""
    camera = sender(late_sound.read_bytes())
    source = hr.live_video({"gate": camera.address}, ends=True)
    run(source)
    behind = source.notes().get("video.packets_behind", 0)  # all was sent at once: a slow machine lags behind that
    assert (camera.num_connections, balance(source)["decoded"] + behind) == (1, 25)


@pytest.mark.parametrize(("form", "codec"), [("mjpeg", "mjpeg"), ("mpjpeg", "mjpeg"), ("h264", "libx264")])
def test_a_stream_without_a_clock_goes_by_arrival(
    tmp_path: Path, sender: Callable[..., Sender], form: str, codec: str
) -> None:
    """FFmpeg makes up 25 frames a second of it: these are nobody's, neither of frames nor of jitter or a clip."""
    with av.open(str(tmp_path / "a"), "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size, stream.options = 5, {} if codec == "mjpeg" else {"tune": "zerolatency"}
        for number in range(40):
            image = np.full((48, 64, 3), 10 + number * 5, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    camera = sender((tmp_path / "a").read_bytes(), pieces=40, pause=0.05)
    source = hr.live_video({"gate": camera.address}, ends=True)
    source.open(SourcePlan())
    jobs = take(source, lambda: source.is_exhausted)
    (tally,) = source.tallies()
    source.close()
    assert [job.attributes["seconds"] for job in jobs] == [job.attributes["arrived"] for job in jobs]
    assert source.notes()["video.times_missing"] == source.notes()["video.decoded"]
    assert tally.record(time.monotonic()).jitter_p50_seconds is None
    (tmp_path / "kept").mkdir()
    (kept,) = source.keep_clips(tmp_path / "kept", 1.0, threading.Event())
    times = [entry.attributes["seconds"] for entry in hr.video(kept.file).entries()]
    assert {round(later - before, 2) for before, later in itertools.pairwise(times)} != {0.04}


def test_a_dry_run_tries_as_many_frames_as_are_asked_for(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """None of them is settled until the end, so more are in flight than a run would have."""
    camera = sender(clip(tmp_path / "a.ts"), pieces=100, pause=0.02)
    pipeline = hr.Pipeline(
        hr.live_video({"gate": camera.address}), stages=[hr.stage("see", len)], delivery=hr.collect()
    )
    assert len(dry_run(pipeline, Plan(), 5)) == 5


def test_streams_of_a_pipeline_are_drained(sender: Callable[..., Sender]) -> None:
    """As those of an address are, and the pipeline's own source goes on for ever."""
    own = hr.live_video({"gate": "tcp://127.0.0.1:9"})
    source = choose_source(own, None, drain=True)
    assert (own.is_endless, source.is_endless) == (True, False)
    with pytest.raises(SourceError, match="no stream brought a frame"):
        run(source)


def test_a_limit_ends_an_endless_run(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """What was in the slots is counted as dropped, and no thread is left."""
    camera = sender(clip(tmp_path / "a.ts", 200), "hang", 200, 0.01)
    source = hr.live_video([camera.address], fps=12.5)
    assert source.is_endless
    result, answers = run(source, limit=5)
    assert result.counters.delivered == len(answers) == 5
    counts = balance(source)
    assert counts["skipped_fps"] > 0
    assert counts["decoded"] == sum(num for name, num in counts.items() if name != "decoded")  # nothing is in a slot
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("video-")]
    assert pickle.loads(pickle.dumps(source)).where == source.where


_PUBLISHER = """
import sys, time
import av, numpy as np
with av.open(sys.argv[1], "w", format="rtsp", options={"rtsp_transport": "tcp"}) as container:
    stream = container.add_stream("libx264", rate=25)
    stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
    stream.codec_context.gop_size, stream.options = 5, {"tune": "zerolatency"}
    for number in range(75):
        frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), number * 3, np.uint8), format="rgb24")
        container.mux(stream.encode(frame))
        time.sleep(0.02)
    container.mux(stream.encode(None))
"""


def test_rtsp(tmp_path: Path) -> None:
    """A camera that publishes by RTSP is read until it says that it ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"rtsp://127.0.0.1:{port}/gate"
    source = hr.live_video({"gate": address}, ends=True, options={"rtsp_flags": "listen", "listen_timeout": "20"})
    # It may begin before we listen: then it is refused, and tries again.
    publish = (
        f"for i in $(seq 50); do {sys.executable} -c '{_PUBLISHER}' {address} 2>/dev/null && break; sleep 0.1; done"
    )
    publisher = subprocess.Popen(["bash", "-c", publish])
    try:
        result, answers = run(source)
    finally:
        publisher.kill()
        publisher.wait()
    assert set(answers.values()) == {(48, 64, 3)}
    assert result.counters.delivered == len(answers) == balance(source)["given"]
    assert balance(source)["decoded"] >= 50


@pytest.mark.parametrize("what", ["away", "freeze"])
def test_an_rtsp_camera_that_fails_comes_back(tmp_path: Path, what: str) -> None:
    """Its connection is cut, or nothing comes for longer than `patience`, not twice as long: a new session brings frames."""
    clip(tmp_path / "a.ts", 50)
    with cameras(tmp_path / "a.ts", 1, "rtsp") as (addresses, order):
        source = hr.live_video({"gate": addresses[0]}, patience=1.0)

        def wait(notes: str, number: int) -> None:
            give_up_at = time.monotonic() + 30
            while source.notes().get(f"video.{notes}", 0) < number and time.monotonic() < give_up_at:
                time.sleep(0.02)

        def fail() -> None:
            wait("given", 10)
            order(what, 0, 1.5)
            wait("lost", 1)
            wait("given", source.notes()["video.given"] + 10)
            source.stop()

        failing = threading.Thread(target=fail)
        failing.start()
        _, answers = run(source)
        failing.join()
    assert set(answers.values()) == {(48, 64, 3)}
    assert len(answers) >= 20
    notes = source.notes()
    assert notes["video.lost"] >= 1
    assert notes["video.opened"] >= 2
    balance(source)


def test_addresses() -> None:
    """What is behind # is for headrace; a secret is not shown, and gives no stream its name."""
    source = parse_source("rtsp://me:hidden@camera:554/main?channel=1#fps=5&size=32x24&max_age=500ms", drain=False)
    assert isinstance(source, LiveVideo)
    assert source.where == "the frames of rtsp://...@camera:554/main?..., 5 per second, at 32 x 24"
    assert list(source._addresses) == ["camera:554/main"]
    assert list(hr.live_video("RTSP://camera/a/user=me_password=hidden/b")._addresses) == ["camera/a/..."]
    assert parse_source("live+http://camera/main", drain=True).is_endless is False
    for wrong, said in [
        ("fps=0", "fps"),
        ("fp=2", "Did you mean 'fps'"),
        ("max_age=x", "max_age=x"),
        ("size=1x", "size=1x"),
    ]:
        with pytest.raises(SettingsError, match=said) as caught:
            parse_source(f"rtsp://me:hidden@camera/main#{wrong}", drain=False)
        assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(("streams", "options", "said"), [
    ([], {}, "an address such as"),
    ("clip.mp4", {}, "Files are for hr.video"),
    ("file:///etc/passwd", {}, "Files are for hr.video"),
    (3, {}, "streams is a int"),
    ([3], {}, "an address is a int"),
    ([("gate", "rtsp://me:hidden@a/b")], {}, "an address is a tuple"),
    ("me:hidden@a/b", {}, "no such beginning"),
    ("rtsp://me:hid#den@a/b", {}, "%23"),
    ("rtsp://a/b", {"options": {"timeout": 5}}, "options"),
    ("rtsp://a/b", {"options": ["hidden"]}, "options"),
    ("rtsp://a/b", {"patience": 0}, "patience"),
    (["rtsp://a/b", "rtsp://u:p@a/b"], {}, "two streams are called a/b"),
    ({"": "rtsp://a/b"}, {}, "the name of a stream"),
    ("rtsp://a/b", {"max_age": 0}, "max_age"),
    ("rtsp://a/b", {"max_age": True}, "max_age"),
    ("rtsp://a/b", {"every": 2, "fps": 3}, "fps"),
])  # fmt: skip
def test_settings_are_checked(streams: Any, options: dict[str, Any], said: str) -> None:
    """Each says what was expected, and shows no secret."""
    with pytest.raises(SettingsError, match=said) as caught:
        hr.live_video(streams, **options)
    assert "hid" not in str(caught.value)


def test_nothing_comes_at_all() -> None:
    """Where streams may end, the run ends with an error that says why; else it would end as a success."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(SourceError, match=r"no stream brought a frame: gate: Connection refused"):
        run(hr.live_video({"gate": f"tcp://127.0.0.1:{port}"}, ends=True))


def test_what_came_while_a_stream_was_opened(
    tmp_path: Path, sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of that the newest alone is given: it is kept back until the first read that waited, and is no older than that."""
    monkeypatch.setattr("headrace.sources.live_stream._WAITED_SECONDS", 0.4)  # a busy machine stands still for less
    data = clip(tmp_path / "a.ts", 30)
    camera = sender(data[: len(data) // 2 // 188 * 188], "hang")
    source = hr.live_video({"gate": camera.address}, ends=True, patience=0.5)
    source.open(SourcePlan())
    jobs = take(source, lambda: source.notes().get("video.lost", 0) >= 2)
    source.close()
    counts = balance(source)
    assert counts["skipped_opening"] >= 2 * 10
    # The one that was kept, and what FFmpeg still held when the connection broke off.
    assert len(jobs) <= counts["decoded"] - counts["skipped_opening"] <= 3 * source.notes()["video.opened"]


def test_the_newest_takes_the_place_of_one_that_was_chosen(
    tmp_path: Path, sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what came while a stream was opened: else nothing is given before the next frame that `fps` chooses."""
    monkeypatch.setattr("headrace.sources.live_stream._WAITED_SECONDS", 0.4)
    data = clip(tmp_path / "a.ts", 30)
    camera = sender(data[: len(data) // 2 // 188 * 188], "hang")
    source = hr.live_video({"gate": camera.address}, fps=1, ends=True, patience=0.5)
    source.open(SourcePlan())
    jobs = take(source, lambda: source.notes().get("video.lost", 0) >= 1)
    source.close()
    balance(source)
    assert jobs[0].sequence is not None
    assert jobs[0].sequence >= 10


def test_an_rtsp_camera_is_seen_soon(tmp_path: Path) -> None:
    """A picture comes of its first five frames; FFmpeg would read eight to guess times that RTSP does not send."""
    clip(tmp_path / "a.ts", 20)
    camera = senders._RtspCamera(senders._units(tmp_path / "a.ts"))
    source = hr.live_video({"gate": f"rtsp://127.0.0.1:{camera.port}/main"}, ends=True, patience=2.0)
    source.open(SourcePlan())
    give_up_at = time.monotonic() + 20.0
    while not camera._playing and time.monotonic() < give_up_at:
        camera.answer()
        time.sleep(0.01)
    for _ in range(5):
        camera.send()
    jobs = take(source, lambda: "video.lost" in source.notes() or "video.not_opened" in source.notes())
    source.close()
    camera.close()
    assert [(job.stream, job.payload.shape) for job in jobs][:1] == [("gate", (48, 64, 3))]


def test_pictures_that_never_come(
    tmp_path: Path, sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets alone do not keep a connection, and `close` does not wait for a picture."""
    monkeypatch.setattr("headrace.sources.live_stream._NO_PICTURE_SECONDS", 0.3)
    monkeypatch.setattr("headrace.sources.live_stream._NO_KEYFRAME_SECONDS", 60.0)
    monkeypatch.setattr("headrace.sources.live_stream.pixel_limit", dict)
    monkeypatch.setattr("headrace.sources.frames.MOST_PIXELS", 100)
    camera = sender(clip(tmp_path / "a.ts", 200), "hang", 200, 0.02)
    source = hr.live_video({"gate": camera.address}, patience=0.2)
    source.open(SourcePlan())
    take(source, lambda: source.notes().get("video.not_opened", 0) >= 2)
    assert source._cameras[0].stream.last_error.startswith("packets came for")
    source.close()


def test_a_stream_that_is_away_takes_no_share(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """What may be in flight is for the streams that bring something."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    camera = sender(clip(tmp_path / "a.ts", 200), "hang", 200, 0.01)
    source = hr.live_video({"gate": camera.address, "off": f"tcp://127.0.0.1:{port}"})
    source.open(SourcePlan(max_in_flight=4))
    jobs: list[Job] = []
    give_up_at = time.monotonic() + 20
    while len(jobs) < 4 and time.monotonic() < give_up_at:
        jobs += source.receive(1, 0.1) or []  # none is settled
    assert [job.stream for job in jobs] == ["gate"] * 4
    for job in jobs:
        job.settle(DELIVERED)
    source.close()


def test_several_receivers(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """A stream whose size changes is converted by one thread at a time: its converter is not made for several."""
    data = b"".join(clip(tmp_path / f"{size}.ts", 10, (size, 48)) for size in (64, 128) * 5)
    camera = sender(data, "close", 100, 0.01)
    source = hr.live_video({"gate": camera.address}, ends=True)
    settings = ["source.receivers=4", "source.max_in_flight=16", "source.receive_batch=1"]
    result, answers = run(source, plan=Plan().with_settings(settings))
    assert set(answers.values()) <= {(48, 64, 3), (48, 128, 3)}
    assert result.counters.delivered == balance(source)["given"] > 0


def slots_of(source: LiveVideo, names: str) -> None:
    """Put a frame into the slot of each stream."""
    for camera in source._cameras:
        if camera.name in names:
            source._offer(camera, LiveFrame(0, None, time.monotonic_ns(), 0.0, None), "")


def test_urgent_streams_go_first_and_leave_the_others_an_eighth() -> None:
    """Where there is room for one frame at a time, of 80 the others have 10, all alike; alone they have all."""
    source = hr.live_video(dict.fromkeys("abcd", "tcp://127.0.0.1:9"), urgent=["a", "b"])
    source.open(SourcePlan())
    try:
        taken = []
        for _ in range(80):
            slots_of(source, "abcd")
            with source._changed:
                ((camera, _),) = source._take(1)
                camera.num_inside -= 1
            taken.append(camera.name)
        counts = Counter(taken)
        assert counts["c"] + counts["d"] == 10
        assert abs(counts["a"] - counts["b"]) <= 1 >= abs(counts["c"] - counts["d"])
        with source._changed:
            for camera in source._cameras:
                source._drop(camera, "newer")
        slots_of(source, "cd")
        with source._changed:
            assert {camera.name for camera, _ in source._take(2)} == {"c", "d"}
    finally:
        source.close()


def test_a_frame_that_hangs_holds_up_no_other_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Both places were its stream's when no other had a frame; once it hangs they count no more, and it gets no others."""
    source = hr.live_video(dict.fromkeys("ab", "tcp://127.0.0.1:9"))
    source.open(SourcePlan())
    try:
        for _ in range(2):
            slots_of(source, "a")
            with source._changed:
                assert [camera.name for camera, _ in source._take(2)] == ["a"]
        slots_of(source, "ab")
        with source._changed:
            assert source._take(2) == []
        assert source.in_flight_limit(None, 1) == 2
        later = time.monotonic_ns() + 6 * 10**9
        monkeypatch.setattr("headrace.sources.live_video.time.monotonic_ns", lambda: later)
        assert source.in_flight_limit(None, 1) == 4
        with source._changed:
            assert [camera.name for camera, _ in source._take(2)] == ["b"]
    finally:
        monkeypatch.undo()
        source.close()
    assert caplog.text.count("has been in the pipeline for 5 s") == 1


def test_a_stream_that_is_reset_while_it_is_opened_loses_no_frame(
    tmp_path: Path, sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest frame of each connection is given, and one that may end is given up after five such."""
    camera = sender(clip(tmp_path / "a.ts", 21), "hang")

    def reset(self: LiveStream, av: Any, packets: Iterator[Any]) -> Iterator[Any]:
        for _, packet in zip(range(10), packets, strict=False):
            yield packet
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(LiveStream, "_heard", reset)
    source = hr.live_video({"gate": camera.address}, ends=True)
    run(source)
    counts = balance(source)
    assert counts["decoded"] == counts["given"] + counts["skipped_opening"] + counts["dropped_newer"]
    assert counts["given"] + counts["dropped_newer"] >= camera.num_connections == 5


def test_an_rtsp_camera_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no playlist and no picture: nothing came."""
    monkeypatch.setattr("headrace.sources.live_stream._OPEN_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"rtsp://127.0.0.1:{silent.getsockname()[1]}/a"
        with pytest.raises(SourceError, match=r"nothing came for 0\.3 s"):
            run(hr.live_video({"gate": address}, ends=True, patience=0.3))


def test_without_a_thread_for_each_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends, and so do clips, with the limits and the way out; streams that were begun are read no further."""
    start = threading.Thread.start
    started: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("video-"):
            if started:
                raise RuntimeError("can't start new thread")
            started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    source = hr.live_video(dict.fromkeys("ab", "tcp://127.0.0.1:9"))
    with pytest.raises(HeadraceError, match=r"thread video-b cannot be started.*name fewer streams"):
        run(source)
    assert all(camera.stream._closing.is_set() for camera in source._cameras)
    stop = threading.Event()
    with pytest.raises(HeadraceError, match=r"thread video-a cannot be started.*name fewer streams"):
        source.keep_clips(tmp_path, 1.0, stop)
    assert stop.is_set()


def test_jobs_of_urgent_streams_go_first_in_the_pipeline(tmp_path: Path, sender: Callable[..., Sender]) -> None:
    """Their priority is 0, that of the others 1."""
    camera = sender(clip(tmp_path / "a.ts"), pieces=20, pause=0.01)
    source = hr.live_video({"gate": camera.address, "yard": camera.address}, urgent=["gate"], ends=True)
    source.open(SourcePlan())
    try:
        jobs = take(source, lambda: source.is_exhausted)
    finally:
        source.close()
    assert {(job.stream, job.priority) for job in jobs} == {("gate", 0), ("yard", 1)}


@pytest.mark.parametrize("urgent", ["gate", ["yrad"], [1], 5])
def test_urgent_streams_that_are_none(urgent: Any) -> None:
    """One text, a name of no stream, what is no name: refused."""
    with pytest.raises(SettingsError, match="urgent"):
        hr.live_video({"gate": "tcp://127.0.0.1:9"}, urgent=urgent)


def test_thinned_streams_leave_out_evenly() -> None:
    """Each third chosen frame is taken, from the Plan or while it goes on, and the others are counted."""
    source = hr.live_video({"a": "tcp://127.0.0.1:9", "b": "tcp://127.0.0.1:9"})
    source.open(SourcePlan(every=3))
    try:
        for _ in range(9):
            slots_of(source, "ab")
        assert balance(source) == {"decoded": 18, "skipped_plan": 12, "dropped_newer": 4}
        source.thin(1)
        slots_of(source, "a")
        assert balance(source)["skipped_plan"] == 12
    finally:
        source.close()


class Site(http.server.ThreadingHTTPServer):
    """A web server of fixed answers, which notes what it is asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.says_length = True
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Answer)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def at(self, path: str) -> str:
        """Return the address of a page."""
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # the name is the library's
        server: Any = self.server
        server.asked.append(self.path)
        body = server.pages.get(self.path)
        self.send_response(404 if body is None else 200)
        if server.says_length:
            self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[Callable[[], Site]]:
    """Return what starts web servers; they are closed at the end."""
    started: list[Site] = []

    def start() -> Site:
        started.append(Site())
        return started[-1]

    yield start
    for one in started:
        one.shutdown()
        one.server_close()


def dash_of(address: str) -> str:
    """Return a DASH manifest with one segment."""
    return (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S" '
        'profiles="urn:mpeg:dash:profile:isoff-on-demand:2011"><Period><AdaptationSet mimeType="video/mp2t"><Representation '
        f'id="0" bandwidth="1"><BaseURL>{address}</BaseURL></Representation></AdaptationSet></Period></MPD>'
    )


@pytest.mark.parametrize("form", ["hls", "dash"])
@pytest.mark.parametrize("place", ["beside", "elsewhere", "file"])
def test_what_a_playlist_names_is_not_fetched(form: str, place: str, site: Callable[[], Site], tmp_path: Path) -> None:
    """A playlist is refused before anything of it is followed: segments beside it, on another host, or of this machine."""
    data, front, other = clip(tmp_path / "clip.ts"), site(), site()
    front.pages["/a.ts"] = other.pages["/a.ts"] = data
    address = {"beside": "a.ts", "elsewhere": other.at("/a.ts"), "file": (tmp_path / "clip.ts").as_uri()}[place]
    list_of_segments = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{address}\n#EXT-X-ENDLIST\n"
    front.pages["/list"] = (list_of_segments if form == "hls" else dash_of(address)).encode()
    source = hr.live_video({"gate": front.at("/list")}, ends=True, patience=0.5)
    with pytest.raises(SourceError, match=r"no stream brought a frame: gate: .*this may be a playlist"):
        run(source)
    assert set(front.asked) == {"/list"}
    assert not other.asked


def test_the_same_server_is_read_where_it_sends_a_container(site: Callable[[], Site], tmp_path: Path) -> None:
    """The playlists of the test above are refused for what they are, not for how they are served."""
    front = site()
    front.pages["/a.ts"] = clip(tmp_path / "clip.ts")
    result, _ = run(hr.live_video({"gate": front.at("/a.ts")}, ends=True))
    assert result.counters.delivered


def test_where_http_says_no_length_closing_is_the_end(site: Callable[[], Site], tmp_path: Path) -> None:
    """FFmpeg reports it as an error; with `ends` the stream is over then, and not read once more from its beginning."""
    server = site()
    server.pages["/a.ts"] = clip(tmp_path / "a.ts")
    server.says_length = False
    result, _ = run(hr.live_video(server.at("/a.ts"), ends=True), limit=100)
    assert result.counters.notes["video.decoded"] in (19, 20)  # the demuxer may hold the last one
    assert server.asked == ["/a.ts"]
