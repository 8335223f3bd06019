"""Frames of video files as jobs: each once, in bounded memory, whatever is in the file and whatever ends the run."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import headrace as hr
from headrace.base.errors import CheckpointError, SettingsError, SourceError
from headrace.base.plan import Plan, SourcePlan
from headrace.base.records import DELIVERED, Job, Outcome, OutcomeKind
from headrace.cli import main
from headrace.cli.loading import parse_source
from headrace.runs.journal import Journal
from headrace.sources.clips import Choice, Clip
from headrace.sources.frames import Chooser, Converter, Times, accelerator, choose

av = pytest.importorskip("av")
hwaccel = pytest.importorskip("av.codec.hwaccel")
WIDTH, HEIGHT = 64, 48


def picture(number: int) -> np.ndarray:
    """Return a picture that tells its number by the grey of its halves."""
    image = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    image[:, : WIDTH // 2] = number % 10 * 24
    image[:, WIDTH // 2 :] = number // 10 * 24
    return image


def number_of(image: np.ndarray) -> int:
    """Return the number that a decoded picture tells."""
    half = image.shape[1] // 2
    units, tens = (round(float(part[4:-4, 4:-4].mean()) / 24) for part in (image[:, :half], image[:, half:]))
    return 10 * tens + units


def make(
    path: Path,
    count: int = 20,
    *,
    codec: str = "libx264",
    fmt: str = "yuv420p",
    size: tuple[int, int] = (WIDTH, HEIGHT),
    b_frames: int = 0,
    rotation: int = 0,
    options: dict[str, str] | None = None,
    times: list[int] | None = None,
) -> Path:
    """Write a clip of 25 frames per second, or with times in milliseconds; a keyframe at each tenth."""
    path.parent.mkdir(exist_ok=True)
    with av.open(str(path), "w", options=options or {}) as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = *size, fmt
        stream.codec_context.gop_size, stream.codec_context.max_b_frames = 10, b_frames
        if codec == "libx264":
            stream.options = {"sc_threshold": "0"}  # no keyframe of its own accord
        if times:
            stream.codec_context.time_base = Fraction(1, 1000)
        if rotation:
            stream.set_display_rotation(rotation)
        for number in range(count if times is None else len(times)):
            image = np.resize(picture(number), (size[1], size[0], 3)) if size != (WIDTH, HEIGHT) else picture(number)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            if times:
                frame.pts, frame.time_base = times[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def run(source: Any, function: Callable[[Any], Any] = number_of, **options: Any) -> tuple[hr.Result, dict[str, Any]]:
    """Return how a run over a source went, and {id: result}."""
    kept = hr.collect()
    result = hr.run(hr.Pipeline(source, stages=[hr.stage("see", function)], delivery=kept), **options)
    return result, dict(kept.results)


def notes(result: hr.Result) -> dict[str, int]:
    """Return what was counted, without `video.`; what was decoded is what was given and skipped, always."""
    found = {name.removeprefix("video."): number for name, number in result.counters.notes.items() if "video." in name}
    skipped = sum(number for name, number in found.items() if name.startswith("skipped_"))
    assert found.get("decoded", 0) == found.get("given", 0) + skipped
    return found


def reasons(source: Any) -> dict[str, str]:
    """Return {id: why} of what is refused."""
    return {entry.id: entry.refused for entry in source.entries() if entry.refused}


def test_a_run_that_a_limit_ends_may_go_around_in_a_clip(tmp_path: Path) -> None:
    """Frames are decoded again in the thread that decodes, which goes on measuring what that takes."""
    source = hr.video(make(tmp_path / "a.mp4", 5))
    with source.going_around():
        _, results = run(source, limit=12)
    turns = [[f"a.mp4#{number}{again}" for number in range(5)] for again in ("", "#2", "#3")]
    assert sorted(results) == sorted([*turns[0], *turns[1], *turns[2][:2]])
    assert results["a.mp4#3#2"] == 3
    assert source.work.cpu_seconds

    assert len(run(source)[1]) == 5


def test_every_frame_is_a_job(tmp_path: Path) -> None:
    """Each picture comes once, in the order of showing, not of storing, with its clip, number and time."""
    make(tmp_path / "in" / "a.mp4", b_frames=2)
    make(tmp_path / "in" / "b.mkv", 5)
    source = hr.video(tmp_path / "in")
    source.open(SourcePlan())
    jobs: list[Job] = []
    while (got := source.receive(3, 1.0)) is not None:
        for job in got:
            job.settle(DELIVERED)
        jobs += got
    source.close()
    assert [(job.stream, job.sequence) for job in jobs] == [("a.mp4", n) for n in range(20)] + [
        ("b.mkv", n) for n in range(5)
    ]
    assert [job.id for job in jobs[18:22]] == ["a.mp4#18", "a.mp4#19", "b.mkv#0", "b.mkv#1"]
    assert [number_of(job.payload) for job in jobs] == [*range(20), *range(5)]
    assert [job.attributes["seconds"] for job in jobs[:3]] == pytest.approx([0.0, 0.04, 0.08])
    assert {(job.payload.shape, job.payload.dtype.name) for job in jobs} == {((HEIGHT, WIDTH, 3), "uint8")}
    assert source.statistics().delivered == 25


@pytest.mark.parametrize(
    ("choice", "given", "decoded"),
    [
        ({"every": 6}, [0, 6, 12, 18], 20),
        ({"fps": 5}, [0, 5, 10, 15], 20),
        ({"fps": 0.5}, [0], 20),
        ({"keyframes": True}, [0, 10], 2),
        ({"keyframes": True, "every": 2}, [0], 2),
    ],
)
def test_frames_are_chosen(tmp_path: Path, choice: dict[str, Any], given: list[int], decoded: int) -> None:
    """The rest is counted as skipped; with `keyframes` it is not even decoded."""
    clip = make(tmp_path / "a.mp4")
    result, answers = run(hr.video(clip, **choice))
    assert sorted(answers.values()) == given
    assert notes(result)["decoded"] == decoded
    assert notes(result)["given"] == len(given)


@pytest.mark.parametrize(("suffix", "codec", "fmt"), [
    ("mkv", "ffv1", "yuv420p"), ("mov", "qtrle", "rgb24"), ("webm", "libvpx-vp9", "yuv420p"), ("ts", "libx264", "yuv420p"),
])  # fmt: skip
def test_keyframes_of_any_codec(tmp_path: Path, suffix: str, codec: str, fmt: str) -> None:
    """Also where the decoder would give all frames when it is asked for keyframes, or none."""
    result, answers = run(hr.video(make(tmp_path / f"a.{suffix}", codec=codec, fmt=fmt), keyframes=True))
    assert answers == {f"a.{suffix}#0": 0, f"a.{suffix}#1": 10}
    assert notes(result)["decoded"] == 2


def test_no_keyframe_at_all(tmp_path: Path) -> None:
    """Is said, whatever the clip is."""
    clip = tmp_path / "a.mkv"
    with av.open(make(tmp_path / "whole.mkv", codec="ffv1")) as whole, av.open(clip, "w") as container:
        stream = container.add_stream_from_template(whole.streams.video[0])
        for packet in whole.demux(whole.streams.video[0]):
            if packet.size and not packet.is_keyframe:
                packet.stream = stream
                container.mux(packet)
    assert "marks as keyframes" in reasons(hr.video(clip, keyframes=True))["a.mkv#"]


def test_rates_go_by_the_time_of_the_clip(tmp_path: Path) -> None:
    """Not by the number of the frame: of a clip of changing rate, `fps` takes the first frame in each part of a second."""
    clip = make(tmp_path / "a.mkv", codec="ffv1", times=[0, 40, 45, 500, 510, 520, 60000, 60040, 60041])
    result, answers = run(hr.video(clip, fps=5))
    assert sorted(answers) == ["a.mkv#0", "a.mkv#3", "a.mkv#6"]
    assert notes(result)["times_jumped"] == 1


@pytest.mark.parametrize(("rotation", "size", "shape"), [
    (0, (32, 20), (20, 32, 3)), (0, 96, (96, 96, 3)), (90, None, (WIDTH, HEIGHT, 3)), (90, (20, 32), (32, 20, 3)),
])  # fmt: skip
def test_frames_are_upright_and_of_the_size(tmp_path: Path, rotation: int, size: Any, shape: tuple[int, ...]) -> None:
    """A phone's clip is turned as its header says; `size` is (width, height) of what comes out."""
    clip = make(tmp_path / "a.mp4", 3, rotation=rotation)

    def look(image: np.ndarray) -> tuple[tuple[int, ...], bool, int]:
        middle = image.shape[0] // 2, image.shape[1] // 2
        upper, lower, left, right = image[: middle[0]], image[middle[0] :], image[:, : middle[1]], image[:, middle[1] :]
        brightest = int(np.argmax([part.mean() for part in (left, lower, right, upper)]))
        return image.shape, bool(image.flags.c_contiguous), 90 * brightest

    _, answers = run(hr.video(clip, size=size), look)
    assert answers["a.mp4#2"] == (shape, True, rotation)  # to the left, in the file


@pytest.mark.parametrize(("suffix", "codec", "fmt"), [
    ("mkv", "ffv1", "gray"), ("mkv", "ffv1", "yuv420p10le"), ("avi", "mpeg4", "yuv420p"), ("ts", "mpeg2video", "yuv420p"),
    ("h264", "libx264", "yuv420p"), ("mkv", "ffv1", "bgr0"),
])  # fmt: skip
def test_kinds_of_files(tmp_path: Path, suffix: str, codec: str, fmt: str) -> None:
    """Grey, ten bits, RGB, other containers, and a stream without any times: all frames come as RGB."""
    result, answers = run(hr.video(make(tmp_path / f"a.{suffix}", 6, codec=codec, fmt=fmt)))
    assert sorted(answers.values()) == list(range(6))
    assert notes(result).get("times_missing", 0) == (6 if suffix == "h264" else 0)


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
@pytest.mark.parametrize(
    ("fmt", "size"), [("yuv420p", (96, 64)), ("yuv422p", (101, 67)), ("yuvj420p", (96, 64)), ("bgr0", (96, 64))]
)
def test_a_region(tmp_path: Path, turn: int, fmt: str, size: tuple[int, int]) -> None:
    """Is the same pixels as those of the whole upright picture, whatever the file is, and at least what was asked for."""
    codec, suffix = {"yuv420p": ("libx264", "mp4"), "yuvj420p": ("mjpeg", "mov")}.get(fmt, ("ffv1", "mkv"))
    clip = make(tmp_path / f"a.{suffix}", 2, codec=codec, fmt=fmt, size=size, rotation=turn)
    (whole, *_) = [entry.payload for entry in hr.video(clip).entries()]
    (part, *_) = [entry.payload for entry in hr.video(clip, region=(0.25, 0.5, 0.75, 1)).entries()]
    height, width = whole.shape[:2]
    places = [
        (top, left)
        for top in range(height - part.shape[0] + 1)
        for left in range(width - part.shape[1] + 1)
        if np.array_equal(whole[top : top + part.shape[0], left : left + part.shape[1]], part)
    ]
    assert any(
        top <= 0.5 * height < top + 4 and top + part.shape[0] == height and left <= 0.25 * width < left + 4
        for top, left in places
    ), (places, whole.shape, part.shape)
    assert width / 2 <= part.shape[1] < width / 2 + 8
    (small, *_) = [entry.payload for entry in hr.video(clip, region=(0.25, 0.5, 0.75, 1), size=(20, 10)).entries()]
    assert small.shape == (10, 20, 3)


def write_scene(path: Path, count: int, spot: Callable[[int], int | None], light: Callable[[int], int]) -> Path:
    """Write a noisy picture of 25 frames per second with a bright spot at a column, and light that changes everywhere."""
    noise = np.random.default_rng(7)
    still = noise.integers(60, 120, (90, 160, 1))
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 90, "gray"
        for number in range(count):
            image = still + noise.normal(0, 2, still.shape) + light(number)
            if (column := spot(number)) is not None:
                image[40:52, column : column + 12] = 250
            frame = av.VideoFrame.from_ndarray(image[..., 0].clip(0, 255).astype(np.uint8), format="gray")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def test_frames_without_motion_are_left_out(tmp_path: Path) -> None:
    """They come while something moves, for a second more, and every two seconds; noise and another light are no motion."""
    clip = write_scene(
        tmp_path / "a.mkv",
        225,
        lambda number: number - 80 if 100 <= number < 125 else None,
        lambda number: 40 if number >= 60 else 0,
    )
    result, answers = run(hr.video(clip, motion=0.005), lambda image: image.shape)
    given = sorted(int(item.partition("#")[2]) for item in answers)
    # To 125 the spot is gone again, which is a motion as well.
    assert given == [*range(25), 74, *range(100, 150), 199]
    assert notes(result)["skipped_still"] == 225 - len(given)
    # The spot is above the region.
    below = hr.video(clip, motion=0.005, region=(0, 0.6, 1, 1))
    assert [entry.id for entry in below.entries()] == [f"a.mkv#{number}" for number in (*range(25), 74, 124, 174, 224)]
    # Chosen by `fps` first: then only these are looked at.
    assert len(list(hr.video(clip, motion=0.005, fps=5).entries())) == 5 + 1 + 10 + 1


def test_what_moves_slowly_is_seen(tmp_path: Path) -> None:
    """From one frame to the next nearly nothing changes, and from the last one that was given enough."""
    clip = write_scene(tmp_path / "a.mkv", 150, lambda number: 20 + number // 10, lambda number: 0)
    found = [entry.sequence for entry in hr.video(clip, motion=0.01).entries()]
    assert len([number for number in found if number is not None and number > 25]) > 25


def test_a_size_that_changes(tmp_path: Path) -> None:
    """A recorder's stream may change its size and begin its time again; each frame has the size of its own part."""
    first, second = make(tmp_path / "1.ts", 4), make(tmp_path / "2.ts", 4, size=(96, 64))
    joined = tmp_path / "joined.ts"
    joined.write_bytes(first.read_bytes() + second.read_bytes())
    result, answers = run(hr.video(joined), lambda image: image.shape)
    assert Counter(answers.values()) == {(HEIGHT, WIDTH, 3): 4, (64, 96, 3): 4}
    assert (notes(result)["size_changes"], notes(result)["times_backwards"]) == (1, 1)
    _, answers = run(hr.video(joined, size=32), lambda image: image.shape)
    assert Counter(answers.values()) == {(32, 32, 3): 8}


def write_sound(path: Path) -> None:
    """Write a file without pictures."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
        frame.rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def test_files_that_give_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one job that is rejected with a reason; the clip after them comes."""
    folder = tmp_path / "in"
    make(folder / "z.mp4", 3)
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "playlist.mp4").write_text("#EXTM3U\n#EXTINF:1,\nz.mp4\n")
    (folder / "list.mp4").write_text("ffconcat version 1.0\nfile z.mp4\n")
    whole = make(tmp_path / "whole.mp4").read_bytes()
    (folder / "no_index.mp4").write_bytes(whole[: len(whole) // 2])
    write_sound(folder / "sound.mp4")
    make(folder / "large.mkv", 1, codec="ffv1", fmt="gray", size=(200, 100))
    monkeypatch.setattr("headrace.sources.frames.MOST_PIXELS", 10_000)
    codes = {name.removesuffix("#"): why.partition(":")[0] for name, why in reasons(hr.video(folder)).items()}
    assert codes == {
        **dict.fromkeys(("empty.mp4", "playlist.mp4", "list.mp4", "no_index.mp4"), "video.open"),
        "sound.mp4": "video.no_stream",
        "large.mkv": "video.no_frame",
    }
    result, answers = run(hr.video(folder))
    assert sorted(answers.values()) == [0, 1, 2]
    assert (result.counters.rejected, notes(result)["refused_open"]) == (6, 4)


def test_what_moves_and_is_called_like_a_picture(tmp_path: Path) -> None:
    """GIF, APNG and raw frames are found in a folder; an animated WebP, which nobody reads, is refused as that."""
    folder = tmp_path / "in"
    folder.mkdir()
    frames = [Image.fromarray(np.full((48, 64, 3), 30 * number, np.uint8)) for number in range(4)]
    for name, form in (("a.gif", "GIF"), ("b.apng", "PNG"), ("d.webp", "WEBP")):
        frames[0].save(folder / name, form, save_all=True, append_images=frames[1:], duration=100)
    raw = b"".join(b"FRAME\n" + bytes([number]) * (64 * 48 * 3 // 2) for number in range(4))
    (folder / "c.y4m").write_bytes(b"YUV4MPEG2 W64 H48 F10:1 Ip A1:1 C420jpeg\n" + raw)
    _, answers = run(hr.video(folder))
    assert sorted(answers) == [f"{name}#{number}" for name in ("a.gif", "b.apng", "c.y4m") for number in range(4)]
    assert "animated WebP" in reasons(hr.video(folder / "d.webp"))["d.webp#"]


def test_a_clip_that_is_cut_short(tmp_path: Path) -> None:
    """What is there comes. That there was more is said: by its index, or by its header."""
    whole = make(tmp_path / "whole.mp4", options={"movflags": "faststart"}).read_bytes()
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole[: len(whole) * 3 // 4])
    result, answers = run(hr.video(cut))
    assert 0 < len(answers) < 20
    assert result.counters.rejected == 1
    assert reasons(hr.video(cut))["cut.mp4#"].startswith("video.cut_short: ")
    whole = make(tmp_path / "whole.mkv", 40).read_bytes()
    cut = tmp_path / "cut.mkv"
    cut.write_bytes(whole[: len(whole) // 2])
    result, answers = run(hr.video(cut))
    assert 0 < len(answers) < 40
    assert notes(result)["short_clips"] == 1


def test_a_clip_that_begins_late_is_whole(tmp_path: Path) -> None:
    """The time in the header of Matroska counts from 0, wherever the frames begin."""
    late = make(tmp_path / "late.mkv", 20, times=[100_000 + 40 * number for number in range(20)])
    result, answers = run(hr.video(late))
    assert len(answers) == 20
    assert "short_clips" not in notes(result)


def test_times_that_run_back() -> None:
    """Frames come in the order in which they are shown; where their own times do not, those of their packets are better."""
    times = Times()
    frames = [SimpleNamespace(pts=pts, dts=dts) for dts, pts in enumerate([0, 2, 1, 4, 3, 6, 5, None])]
    for frame in frames:
        times.correct(frame)
    assert [frame.pts for frame in frames] == [0, 2, 2, 3, 4, 5, 6, None]
    again = [SimpleNamespace(pts=pts, dts=None if pts == 3 else pts) for pts in (0, 1, 2, 0, 1, 3)]
    for frame in again:
        Times().correct(frame)
    assert [frame.pts for frame in again] == [0, 1, 2, 0, 1, 3]


def test_a_clip_that_changes_while_it_is_decoded(tmp_path: Path) -> None:
    """Taken away, it still comes to its end; cut off before or meanwhile, it is rejected; the next one comes."""
    whole = make(
        tmp_path / "whole.mp4", 100, codec="mjpeg", fmt="yuvj420p", options={"movflags": "faststart"}
    ).read_bytes()
    folder = tmp_path / "in"
    make(folder / "z.mp4", 3)
    clip = folder / "a.mp4"
    for size, change in [
        (len(whole) * 3 // 4, clip.unlink),
        (len(whole), lambda: os.truncate(clip, len(whole) * 3 // 4)),
    ]:
        clip.write_bytes(whole[:size])
        entries = hr.video(folder).entries()
        assert next(entries).id == "a.mp4#0"
        change()
        found = [(entry.id, entry.refused) for entry in entries]
        assert 40 < len(found) < 90
        assert found[-4][1].startswith("video.cut_short: ")
        assert found[-3:] == [(f"z.mp4#{number}", "") for number in range(3)]


def test_only_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open a pipe would be to wait for who writes into it; it is rejected, and the next clip comes."""
    make(tmp_path / "in" / "c.mp4", 3)
    os.mkfifo(tmp_path / "in" / "b.mp4")
    really_open = av.open

    def open_file(path: str, **options: Any) -> Any:
        assert "b.mp4" not in path
        return really_open(path, **options)

    monkeypatch.setattr(av, "open", open_file)
    result, answers = run(hr.video(tmp_path / "in"))
    assert (result.counters.rejected, sorted(answers)) == (1, ["c.mp4#0", "c.mp4#1", "c.mp4#2"])
    assert reasons(hr.video(tmp_path / "in"))["b.mp4#"].startswith("video.open: it is a pipe")


def test_garbage_in_the_middle(tmp_path: Path) -> None:
    """Packets of which the decoder makes nothing are counted, and those after them are decoded."""
    clip = make(tmp_path / "a.avi", 40, codec="mjpeg", fmt="yuvj420p")
    content = bytearray(clip.read_bytes())
    starts = [place for place in range(len(content) - 3) if content[place : place + 4] == b"00dc"]
    for place in starts[11:14]:  # the first one is in the header
        length = int.from_bytes(content[place + 4 : place + 8], "little")
        content[place + 8 : place + 8 + length] = bytes(length)
    clip.write_bytes(content)
    result, answers = run(hr.video(clip))
    assert notes(result)["damaged_packets"] == 3
    assert sorted(answers.values()) == [*range(10), *range(13, 40)]


def test_streams_that_begin_on_the_way(tmp_path: Path, late_sound: Path) -> None:
    """PyAV ends such a clip with an IndexError; all its frames come, and so does the clip after it."""
    make(tmp_path / "z.mp4", 3)
    result, answers = run(hr.video(tmp_path), lambda image: 0)
    assert len(answers) == 28
    assert "failed_reads" not in notes(result)


@pytest.mark.parametrize(("broken", "code"), [("demux", "no_frame"), ("streams", "read")])
def test_an_error_that_nobody_foresaw_is_the_clips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, code: str
) -> None:
    """Whatever is raised while a clip is read, that one is refused, and the clip after it comes."""
    make(tmp_path / "a.mp4", 3)
    make(tmp_path / "b.mp4", 3)
    open_real = av.open

    class Broken:
        """A container of which one attribute raises."""

        def __init__(self, container: Any) -> None:
            self._container = container

        def __getattr__(self, name: str) -> Any:
            if name == broken:
                raise KeyError("nobody foresaw it")
            return getattr(self._container, name)

        def __enter__(self) -> Broken:
            return self

        def __exit__(self, *_: object) -> None:
            self._container.close()

    monkeypatch.setattr(
        av, "open", lambda file, **more: Broken(open_real(file, **more)) if "a.mp4" in file else open_real(file, **more)
    )
    result, answers = run(hr.video(tmp_path))
    assert sorted(answers) == ["b.mp4#0", "b.mp4#1", "b.mp4#2"]
    assert (result.counters.rejected, notes(result)[f"refused_{code}"]) == (1, 1)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EIO])
def test_a_clip_waits_for_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Without a file handle, or with a file server that is away for a moment, no clip is rejected, which would be for good."""
    make(tmp_path / "a.mp4", 3)
    monkeypatch.setattr("headrace.base.patient_open._PAUSE_SECONDS", 0.001)
    failing: list[str] = []  # each of the calls that opening takes fails once
    calls = {"stat": (Path, Path.stat), "open": (Path, Path.open), "av.open": (av, av.open)}

    def fail_once(name: str, place: Any, *args: Any, **more: Any) -> Any:
        is_opening = "headrace/sources/clips.py" in sys._getframe(2).f_code.co_filename
        if "a.mp4" in str(place) and is_opening and name not in failing:
            failing.append(name)
            raise OSError(number, os.strerror(number))
        return calls[name][1](place, *args, **more)

    for name, (owner, _) in calls.items():
        monkeypatch.setattr(
            owner,
            name.rpartition(".")[2],
            lambda place, *args, name=name, **more: fail_once(name, place, *args, **more),
        )
    result, answers = run(hr.video(tmp_path))
    assert (result.counters.rejected, len(answers), failing) == (0, 3, ["stat", "open", "av.open"])


def test_a_clip_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that never answers is asked some times; what nobody may read, once."""
    make(tmp_path / "a.mp4", 3)
    monkeypatch.setattr("headrace.base.patient_open._PAUSE_SECONDS", 0.001)
    for number, num_tries in ((errno.EIO, 10), (errno.EACCES, 1)):
        tried: list[Path] = []

        def open_file(path: Path, *_: Any, number: int = number, tried: list[Path] = tried) -> Any:
            tried.append(path)
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", open_file)
            assert reasons(hr.video(tmp_path))["a.mp4#"].startswith("video.open: it cannot be read as video: ")
        assert len(tried) == num_tries


def test_damaged_bytes(tmp_path: Path) -> None:
    """Nothing crashes, hangs or vanishes: what was decoded was given or skipped, and a clip without a frame has a reason."""
    clips = [
        make(tmp_path / "a.mp4", b_frames=2), make(tmp_path / "b.mkv"), make(tmp_path / "c.ts", codec="mpeg2video"),
        make(tmp_path / "d.avi", codec="mpeg4"), make(tmp_path / "e.mkv", codec="ffv1", fmt="gray"),
    ]  # fmt: skip
    contents = [clip.read_bytes() for clip in clips]
    seen: Counter[str] = Counter()
    for seed in range(200):
        draw = random.Random(seed)
        content, clip = bytearray(contents[seed % 5]), clips[seed % 5]
        for _ in range(draw.choice([1, 5, 50])):
            place = draw.randrange(len(content) // 8, len(content))
            match draw.randrange(3):
                case 0:
                    content[place] = draw.randrange(256)
                case 1:
                    content[place : place + 40] = draw.randbytes(40)
                case _:
                    del content[place : place + draw.randrange(1, 40)]
        clip.write_bytes(content)
        counts: Counter[str] = Counter()
        choice = Choice(fps=draw.choice([None, Fraction(5)]), size=draw.choice([None, (32, 24)]))
        frames = list(Clip(clip, clip.name, choice, counts).frames(lambda number: number != 3))
        images = [frame for frame in frames if frame.image is not None or frame.refused.startswith("video.convert")]
        assert len(images) == counts["given"]
        assert counts["decoded"] == counts["given"] + counts["skipped_fps"] + counts["skipped_resumed"]
        assert counts["decoded"] or frames[-1].refused
        seen.update(counts)
    assert {"damaged_packets", "decoded", "refused_open", "skipped_fps", "skipped_resumed"} <= {
        n for n in seen if seen[n]
    }


def ids(out: Path) -> list[str]:
    """Return the ids of all results."""
    return [json.loads(line)["id"] for line in out.read_text().splitlines()]


def run_to(out: Path, folder: Path, function: Callable[[Any], Any] = number_of, **options: Any) -> hr.Result:
    """Run over a folder of clips, with results that can be resumed."""
    pipeline = hr.Pipeline(hr.video(folder), stages=[hr.stage("see", function)], delivery=hr.jsonl(out))
    return hr.run(pipeline, **options)


def test_resuming(tmp_path: Path) -> None:
    """Frames come once over three starts, and what was rejected is not rejected again; at the end nothing is given."""
    folder, out = tmp_path / "in", tmp_path / "out.jsonl"
    make(folder / "a.mp4", b_frames=2)
    make(folder / "b.mp4", 10)
    (folder / "0.mp4").write_bytes(b"")
    notes(run_to(out, folder, limit=8))
    notes(run_to(out, folder, resume=True, limit=15))
    third = run_to(out, folder, resume=True)
    expected = [f"a.mp4#{number}" for number in range(20)] + [f"b.mp4#{number}" for number in range(10)]
    assert Counter(ids(out)) == Counter(expected)
    assert third.before is not None
    assert (third.before.total, third.before.left, third.before.done, third.before.rejected) == (None, None, 23, 1)
    assert (third.counters.received, notes(third)["skipped_resumed"]) == (8, 22)
    fourth = run_to(out, folder, resume=True)
    assert (fourth.counters.received, notes(fourth)["skipped_resumed"]) == (0, 30)
    assert len(ids(out)) == 30


def test_resuming_within_a_stream_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a stage knew of the stream is gone; where the earlier start did all, nothing is missing."""
    make(tmp_path / "in" / "a.mp4")

    def run_again(**options: Any) -> bool:
        caplog.clear()
        pipeline = hr.Pipeline(
            hr.video(tmp_path / "in"),
            stages=[hr.stage("see", number_of), hr.temporal.per_stream("mean", hr.temporal.Average)],
            delivery=hr.jsonl(tmp_path / "out.jsonl"),
        )
        hr.run(pipeline, **options)
        return "what mean knew of the streams is gone" in caplog.text

    assert [run_again(limit=8), run_again(resume=True), run_again(resume=True)] == [False, True, False]


def test_clips_are_divided_among_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each clip is decoded by one run, a run that stopped early is told from one that is done, and all frames are gathered."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.py").write_text(
        "import headrace as hr\npipeline = hr.Pipeline(hr.video('clips'), stages=[hr.stage('see', len)])\n"
    )
    for number in range(6):
        make(tmp_path / "clips" / f"{number}.mp4", 4)

    def portion(index: int, *more: str) -> int:
        return main(["-q", "run", "jobs.py:pipeline", "--results", "r.jsonl", "--shard", f"{index}/2", *more])

    assert portion(0, "--limit", "3") == portion(1) == 0
    assert main(["gather", "r.jsonl"]) == 1
    assert portion(0, "--resume") == 0
    assert main(["gather", "r.jsonl"]) == 0
    clips = [{item.split("#")[0] for item in ids(tmp_path / f"r-{index}-of-2.jsonl")} for index in range(2)]
    assert all(clips)
    assert not clips[0] & clips[1]
    assert sorted(ids(tmp_path / "r.jsonl")) == sorted(f"{clip}.mp4#{frame}" for clip in range(6) for frame in range(4))


def test_a_portion_without_clips_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer clips than portions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.py").write_text(
        "import headrace as hr\npipeline = hr.Pipeline(hr.video('clips'), stages=[hr.stage('see', len)])\n"
    )
    make(tmp_path / "clips" / "a.mp4", 4)
    for index in range(2):
        assert main(["-q", "run", "jobs.py:pipeline", "--results", "r.jsonl", "--shard", f"{index}/2"]) == 0
    assert main(["gather", "r.jsonl"]) == 0
    assert len(ids(tmp_path / "r.jsonl")) == 4


def test_no_name_of_a_clip_is_the_id_of_a_frame(tmp_path: Path) -> None:
    """That `a.mp4#3` is refused as a whole takes nothing from frame 3 of `a.mp4`, whichever an earlier start noted."""
    out = tmp_path / "out.jsonl"
    clips = [make(tmp_path / "in" / "a.mp4", 5), tmp_path / "in" / "a.mp4#3"]
    clips[1].write_bytes(b"junk")
    source = hr.video(clips)
    pipeline = hr.Pipeline(source, stages=[hr.stage("see", number_of)], delivery=hr.jsonl(out))
    found = [entry.id for entry in source.entries()]
    assert found == [*(f"a.mp4#{number}" for number in range(5)), "a.mp4#3#"]
    hr.run(pipeline, limit=2)
    journal = Journal(out.with_name("out.jsonl.checkpoint") / "journal.jsonl")
    journal.append({"done": "a.mp4#3#", "as": "rejected"})
    journal.close()
    result = hr.run(pipeline, resume=True)
    assert sorted(ids(out)) == found[:5]
    assert (result.counters.rejected, notes(result)["skipped_resumed"]) == (0, 2)


def test_resuming_other_frames_is_refused(tmp_path: Path) -> None:
    """What chooses the frames is part of what the run is about."""
    folder, out = tmp_path / "in", tmp_path / "out.jsonl"
    make(folder / "a.mp4")
    run_to(out, folder, limit=8)
    pipeline = hr.Pipeline(hr.video(folder, every=2), stages=[hr.stage("see", number_of)], delivery=hr.jsonl(out))
    with pytest.raises(CheckpointError, match="every 2"):
        hr.run(pipeline, resume=True)


@pytest.mark.parametrize("start", ["first", "second"])
def test_a_clip_that_changed_is_not_resumed(tmp_path: Path, start: str) -> None:
    """Frames of two files are not mixed under one name; that holds for a clip that came later, too. New clips are no change."""
    folder, out = tmp_path / "in", tmp_path / "out.jsonl"
    make(folder / "a.mp4")
    run_to(out, folder, limit=8)
    if start == "second":
        make(folder / "b.mp4")
        run_to(out, folder, limit=14, resume=True)
    changed = "a.mp4" if start == "first" else "b.mp4"
    make(folder / changed, 15)
    done = ids(out)
    with pytest.raises(CheckpointError, match=f"{changed} is another file than .* results of two files would be mixed"):
        run_to(out, folder, resume=True)
    assert ids(out) == done
    run_to(out, folder, resume=True, force=True)
    assert run_to(out, folder, resume=True).counters.received == 0  # as it was forced to be


def test_suspects_of_a_crash_come_alone(tmp_path: Path) -> None:
    """Those in hand when a process died come first, one at a time; one that is gone is rejected, not waited for."""
    folder, out = tmp_path / "in", tmp_path / "out.jsonl"
    make(folder / "a.mp4")
    run_to(out, folder, limit=4)
    checkpoint = out.with_name("out.jsonl.checkpoint")
    journal = Journal(checkpoint / "journal.jsonl")
    journal.append({"began": 0, "pid": 1, "host": "h"})
    journal.append({"crashed": ["a.mp4#9", "a.mp4#7", "a.mp4#99", "gone.mp4#1"], "alone": False})
    journal.close()
    with pytest.raises(CheckpointError, match="cut off with 4 done"):  # of how many nobody knows
        run_to(out, folder)
    order: list[int] = []
    inside: list[int] = []
    lock = threading.Lock()

    def see(image: np.ndarray) -> int:
        with lock:
            order.append(number_of(image))
            inside.append(len(order))
        return order[-1]

    result = run_to(out, folder, see, resume=True, plan=Plan.from_table({"stages": {"see": {"workers": 1}}}))
    assert order[:2] == [7, 9]
    assert sorted(order[2:]) == [4, 5, 6, 8, *range(10, 20)]
    assert result.counters.rejected == 1
    assert Counter(ids(out)) == Counter(f"a.mp4#{number}" for number in range(20))


def test_retries_bring_the_same_frame(tmp_path: Path) -> None:
    """A frame that fails is given again with its picture; while many wait, none is decoded, so they do not fill the memory."""
    source = hr.video(make(tmp_path / "a.mp4", 60))
    source.open(SourcePlan())
    again = Outcome(OutcomeKind.RETRY, "later", delay_seconds=1000.0)
    for _ in range(32):
        (job,) = source.receive(1, 10.0) or []
        job.settle(again)
    assert source.receive(1, 0.0) == []
    source.close()
    source = hr.video(tmp_path / "a.mp4", every=50)
    source.open(SourcePlan())
    (job,) = source.receive(1, 10.0) or []
    job.settle(Outcome(OutcomeKind.RETRY, "now"))
    (job,) = source.receive(1, 10.0) or []
    assert (job.id, number_of(job.payload), job.attempt) == ("a.mp4#0", 0, 2)
    source.close()


def test_a_source_that_is_left_ends(tmp_path: Path) -> None:
    """Closed in the middle, its thread ends; it can be opened again, and pickled."""
    source = hr.video(make(tmp_path / "a.mp4", 60))
    source.open(SourcePlan())
    assert source.receive(1, 10.0)
    source.close()
    assert "video" not in {thread.name for thread in threading.enumerate()}
    again = pickle.loads(pickle.dumps(source))
    assert len(run(again)[1]) == 60


def test_addresses(tmp_path: Path) -> None:
    """On the command line, a clip is named by its path, and a folder by `video://`, with what chooses the frames."""
    make(tmp_path / "a.mp4")
    assert len(run(parse_source(str(tmp_path / "a.mp4"), drain=False))[1]) == 20
    source = parse_source(f"video://{tmp_path}?every=5&size=32x20", drain=True)
    assert set(run(source, lambda image: image.shape)[1].values()) == {(20, 32, 3)}
    source = parse_source(f"video://{tmp_path}?region=0,0.5,1,1&motion=0.5", drain=True)
    assert source.where.endswith("where 0.5 of the picture moves, the part 0, 0.5, 1, 1")
    assert set(run(source, lambda image: image.shape)[1].values()) == {(24, WIDTH, 3)}
    for wrong, said in [
        ("every=0", "every"),
        ("evry=2", "Did you mean 'every'"),
        ("size=a", "size=a"),
        ("keyframes=maybe", "keyframes=yes"),
        ("region=0,a", "region=0,a"),
    ]:
        with pytest.raises(SettingsError, match=said):
            parse_source(f"video://{tmp_path}?{wrong}", drain=False)
    for yes in ("yes", "True", "1"):
        source = parse_source(f"video://{tmp_path}?keyframes={yes}&references=no", drain=False)
        assert source.where.endswith("keyframes alone")


@pytest.mark.parametrize("b_frames", [0, 3])
def test_more_threads_decode_the_same(tmp_path: Path, b_frames: int) -> None:
    """The same pixels under the same ids, in the same order; the run folder says at what the source works."""
    make(tmp_path / "a.mp4", 40, size=(320, 180), b_frames=b_frames)
    found = []
    for threads in (1, 3):
        source = parse_source(f"video://{tmp_path}?threads={threads}", drain=False)
        found.append([(entry.id, hash(entry.payload.tobytes())) for entry in source.entries()])
        run(source, output=tmp_path / f"run{threads}")
        work = json.loads((tmp_path / f"run{threads}" / "run.json").read_text())["source_work"]
        assert f"{threads} thread" in work["does"]
    assert len(found[0]) == 40
    assert found[0] == found[1]


def has_gpu() -> bool:
    """Return whether FFmpeg finds an NVIDIA GPU."""
    try:
        accelerator("cuda").create(av.Codec("h264", "r"))
    except Exception:
        return False
    return True


@pytest.mark.parametrize("source", [
    lambda clip: hr.video(clip, device="cuda"), lambda clip: parse_source(f"video://{clip}?device=cuda", drain=False),
    lambda clip: hr.live_video("tcp://127.0.0.1:1", device="cuda"),
    lambda clip: parse_source("rtsp://127.0.0.1:1/a#device=cuda", drain=False),
])  # fmt: skip
def test_a_device_that_is_not_there(tmp_path: Path, source: Callable[[Path], Any]) -> None:
    """It is refused before the first frame, with the reason, and the processor does not do it unasked."""
    if has_gpu():
        pytest.skip("here is one")
    with pytest.raises(
        SourceError, match=r"decoding on cuda is not available here, because .* without device the processor"
    ):
        run(source(make(tmp_path / "a.mp4")))


@pytest.mark.parametrize(("b_frames", "is_less"), [(3, True), (0, False)])
def test_frames_that_no_other_needs(tmp_path: Path, b_frames: int, is_less: bool) -> None:
    """They are not decoded, so they are no frames; the others are as they are. Without B-frames all are needed."""
    path = make(tmp_path / "a.mp4", 40, b_frames=b_frames)
    whole = {number_of(image) for image in run(hr.video(path), np.array)[1].values()}
    source = parse_source(f"video://{path}?references=yes", drain=False)
    fewer = {number_of(image) for image in run(source, np.array)[1].values()}
    assert fewer <= whole
    assert (len(fewer) < 30) == is_less
    assert source.notes()["video.decoded"] == len(fewer)


def test_what_the_device_cannot_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor decodes it, and it is counted."""
    # A GPU is found, and then of no use: PyAV opens the clip as it does without one.
    found = iter([SimpleNamespace(create=lambda codec: None), None])
    monkeypatch.setattr(hwaccel, "HWAccel", lambda device: next(found))
    source = hr.video(make(tmp_path / "a.mp4"), device="cuda")
    assert len(run(source)[1]) == 20
    assert source.notes()["video.not_on_device"] == 1


def test_frames_as_a_gpu_gives_them(tmp_path: Path) -> None:
    """NV12 is the same picture: converted, cut, turned and looked at for motion as any other."""
    choice = choose(every=1, fps=None, keyframes=False, size=(32, 16), region=(0, 0.5, 1, 1), motion=0.01)
    frame = av.VideoFrame.from_ndarray(picture(37), format="rgb24").reformat(format="yuv420p")
    images = [Converter(choice)(frame.reformat(format=name)) for name in ("yuv420p", "nv12")]
    assert images[0].shape == (16, 32, 3)
    assert np.abs(images[0].astype(int) - images[1]).max() <= 2
    assert Chooser(choice, Counter()).why_not(frame.reformat(format="nv12"), SimpleNamespace(average_rate=25), 0) == ""


@pytest.mark.parametrize(("paths", "options", "said"), [
    ("a.mp4", {"references": 1}, "references = 1"), ("a.mp4", {"device": "gpu"}, "device = 'gpu'"),
    ("a.mp4", {"threads": 0}, "threads = 0"), ("a.mp4", {"threads": True}, "threads = True"),
    ([], {}, "paths"), ("rtsp://camera/1", {}, "live streams are for hr.live_video"), ("a.mp4", {"every": 2, "fps": 3}, "fps"),
    ("a.mp4", {"fps": "5"}, "fps = '5'"), ("a.mp4", {"keyframes": "no"}, "keyframes = 'no'.*True or False"),
    ("a.mp4", {"size": True}, "size = True"), ("a.mp4", {"size": 1.5}, "size = 1.5"),
    ("a.mp4", {"every": True}, "every = True"), ("a.mp4", {"fps": 0}, "fps"),
    ("a.mp4", {"size": (3, 0)}, "size"), ("a.mp4", {"size": (1, 2, 3)}, "size"),
    ("a.mp4", {"region": (0, 0, 1)}, "region"), ("a.mp4", {"region": (0.5, 0, 0.5, 1)}, "region"),
    ("a.mp4", {"region": (0, 0, 1, 2)}, "region"), ("a.mp4", {"region": (0, 0, 1, float("nan"))}, "region"),
    ("a.mp4", {"motion": 0}, "motion"), ("a.mp4", {"motion": True}, "motion"), ("a.mp4", {"motion": 1.5}, "motion"),
])  # fmt: skip
def test_settings_are_checked(paths: Any, options: dict[str, Any], said: str) -> None:
    """Before any file is opened."""
    with pytest.raises(SettingsError, match=said):
        hr.video(paths, **options)


def test_clips_are_looked_for_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In each start of a run, so that what is left out is told once; the next start finds what came since."""
    folder, out = tmp_path / "in", tmp_path / "out.jsonl"
    make(folder / "a.mp4", 3)
    (folder / ".hidden").mkdir()
    pipeline = hr.Pipeline(hr.video(folder), stages=[hr.stage("see", number_of)], delivery=hr.jsonl(out))
    hr.run(pipeline, limit=1)
    assert caplog.text.count("hidden folders: 1") == 1
    make(folder / "b.mp4", 2)
    hr.run(pipeline, resume=True)
    assert caplog.text.count("hidden folders: 1") == 2
    assert sorted(ids(out)) == ["a.mp4#0", "a.mp4#1", "a.mp4#2", "b.mp4#0", "b.mp4#1"]


def test_no_clip_is_an_error(tmp_path: Path) -> None:
    """With the path, and what was looked for."""
    with pytest.raises(SourceError, match=r"\*\.mp4"):
        run(hr.video(tmp_path))


SCRIPT = """
import headrace as hr

class Grey(hr.Module):
    input = hr.ImageInput(short_side=32, crop=32)

    def process(self, batch):
        return [round(float(image.mean())) for image in batch]

pipeline = hr.Pipeline(hr.video("in", every=2), module=Grey())
"""


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`headrace run` and `profile` work over clips: a module gets the frames as images, and the run tells the counts."""
    make(tmp_path / "in" / "a.mp4", 40)
    (tmp_path / "grey_of_clips.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "grey_of_clips.py:pipeline", "--results", "out.jsonl", "--json"]) == 0
    counters = json.loads(capsys.readouterr().out)["counters"]
    assert (counters["delivered"], counters["notes"]["video.given"]) == (20, 20)
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert sorted(line["attributes"]["frame"] for line in lines) == list(range(0, 40, 2))
    source = ["--source", f"video://{tmp_path}/in?size=64"]
    assert main(["profile", "grey_of_clips.py:pipeline", *source, "--output", "prof"]) == 0
    assert "40" in capsys.readouterr().out
    assert main(["capacity", "prof", "--cameras", "25/s", "--untrusted", "--json"]) in (0, 4)  # 4: by a goal alone
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["used_rate"]) == ("headrace.cameras/1", 25.0)
    assert found["by_cpu"] > 0
    assert main(["capacity", "prof", "--cameras", "25/s", "--price", "1/h"]) == 2
    assert "--price has no place" in capsys.readouterr().err
