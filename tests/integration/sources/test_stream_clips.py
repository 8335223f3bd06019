"""Stretches of live streams kept as clips: the same pixels, and what came in the way of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.cli import main
from headrace.sources.frames import choose
from headrace.sources.video import open_address

av = pytest.importorskip("av")


def stream_of(
    path: Path, count: int = 60, codec: str = "libx264", form: str = "mpegts", jump: tuple[int, int] | None = None
) -> bytes:
    """Return a stream of 25 frames a second with B-frames, a keyframe at each tenth, each frame of its own grey.

    From frame `jump[0]` on its clock is ahead by `jump[1]` frames.
    """
    with av.open(str(path), "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size = 10
        for number in range(count):
            image = np.full((48, 64, 3), 10 + number % 80 * 3, np.uint8)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts = number + (jump[1] if jump is not None and number >= jump[0] else 0)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path.read_bytes()


@contextlib.contextmanager
def sent(data: bytes, skip: int = 0) -> Iterator[str]:
    """Give the address of who sends this, from so many bytes on, to each who connects, and keeps the connection open."""
    over = threading.Event()

    def send(server: socket.socket) -> None:
        while not over.is_set():
            try:
                peer, _ = server.accept()
            except OSError:
                return
            kept.append(peer)
            with contextlib.suppress(OSError):  # who has enough hangs up
                peer.sendall(data[skip:])

    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=send, args=(server,), daemon=True)
        sender.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        over.set()
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)  # wakes who waits for the next one
        sender.join(10)
    for peer in kept:
        peer.close()


def pictures(path: Path) -> list[np.ndarray]:
    """Return all frames of a clip."""
    return [entry.payload for entry in hr.video(path).entries() if isinstance(entry.payload, np.ndarray)]


def keep(addresses: dict[str, str], folder: Path, seconds: float = 1.0) -> dict[str, Any]:
    """Keep clips, and return them by the streams' names."""
    folder.mkdir()
    source = hr.live_video(addresses, patience=1.0)
    return {clip.stream: clip for clip in source.keep_clips(folder, seconds, threading.Event())}


@pytest.mark.parametrize(("codec", "form"), [("libx264", "mpegts"), ("mjpeg", "matroska")])
def test_a_clip_has_the_pixels_of_the_stream(tmp_path: Path, codec: str, form: str) -> None:
    """A second of it, from its first keyframe on and from time 0: decoded alike, to the last bit."""
    data = stream_of(tmp_path / "a", codec=codec, form=form)
    with sent(data) as address:
        clip = keep({"gate 1": address}, tmp_path / "kept")["gate 1"]
    assert (clip.file.name, clip.why, clip.packets) == ("gate_1.mkv", "", 25)
    kept, given = pictures(clip.file), pictures(tmp_path / "a")
    assert len(kept) == 25
    assert all(np.array_equal(one, other) for one, other in zip(kept[:20], given, strict=False))
    assert next(iter(hr.video(clip.file).entries())).attributes["seconds"] == pytest.approx(0.0, abs=0.1)


def test_what_comes_before_a_keyframe_is_left_out(tmp_path: Path) -> None:
    """A clip that began in the middle could not be decoded."""
    data = stream_of(tmp_path / "a.ts")
    with sent(data, skip=188 * 20) as address:
        clip = keep({"a": address}, tmp_path / "kept", seconds=0.4)["a"]
    assert len(pictures(clip.file)) == clip.packets == 10


def test_streams_that_end_bring_nothing_or_are_not_there(tmp_path: Path) -> None:
    """What is there is kept, with why it is no more; what brought nothing leaves no file; the others are whole."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
    data = stream_of(tmp_path / "a.ts")
    with sent(data) as whole, sent(data[: len(data) // 4]) as short, sent(b"no video" * 999) as garbage:
        found = keep({"whole": whole, "short": short, "garbage": garbage, "nobody": nobody}, tmp_path / "kept")
    assert found["whole"].why == ""
    assert "broke off" in found["short"].why
    assert found["short"].packets > 0
    assert found["garbage"].packets == found["nobody"].packets == 0
    assert "refused" in found["nobody"].why
    assert sorted(file.name for file in (tmp_path / "kept").iterdir()) == ["short.mkv", "whole.mkv"]


def test_names_that_make_one_file_are_numbered(tmp_path: Path) -> None:
    """Cameras may be called in any script, and their files tell them apart."""
    with sent(stream_of(tmp_path / "a.ts")) as address:
        found = keep(dict.fromkeys(["門", "窓", "../a/b", "A_B", "a_b"], address), tmp_path / "kept", seconds=0.4)
    assert [clip.file.name for clip in found.values()] == [
        "stream.mkv",
        "stream-2.mkv",
        "a_b.mkv",
        "A_B-2.mkv",
        "a_b-3.mkv",
    ]
    assert {clip.packets for clip in found.values()} == {10}


def test_sound_alone_does_not_keep_a_clip_open(tmp_path: Path) -> None:
    """Where no more pictures come and packets go on, it ends once it is stopped, with what was kept."""
    stop = threading.Event()
    with talking(tmp_path / "a.ts", stop) as address:
        (tmp_path / "kept").mkdir()
        source = hr.live_video({"a": address}, patience=5.0)
        (clip,) = source.keep_clips(tmp_path / "kept", 10.0, stop)
    assert clip.why == "it was stopped"
    assert clip.packets >= 1


@contextlib.contextmanager
def talking(path: Path, heard: threading.Event) -> Iterator[str]:
    """Give the address of a stream with a second of pictures, and then sound alone; `heard` is set after two seconds of it."""
    with av.open(str(path), "w", format="mpegts") as container:
        pictures, sound = container.add_stream("libx264", rate=25), container.add_stream("mp2", rate=48_000)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
        pictures.options = {"tune": "zerolatency"}
        for _ in range(25):
            container.mux(pictures.encode(av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")))
        for number in range(2000):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1152 * 2), np.int16), format="s16", layout="stereo")
            frame.sample_rate, frame.pts = 48_000, number * 1152
            container.mux(sound.encode(frame))
    data = path.read_bytes()
    half = len(data) // 2 // 188 * 188

    def send(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer, contextlib.suppress(OSError):
            peer.sendall(data[:half])
            for number, at in enumerate(range(half, len(data), 188)):  # a packet each 40 ms
                peer.sendall(data[at : at + 188])
                if number == 50:
                    heard.set()
                over.wait(0.04)

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=send, args=(server,), daemon=True)
        sender.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert sender.is_alive()  # nobody waited for its end
        over.set()
        sender.join(10)


def test_a_folder_with_a_colon_in_its_name(tmp_path: Path) -> None:
    """It is called after a time, and what is before the colon is no protocol."""
    with sent(stream_of(tmp_path / "a.ts")) as address:
        clip = keep({"a": address}, tmp_path / "13:05")["a"]
        before = Path.cwd()
        os.chdir(tmp_path)
        try:
            beside = keep({"a": address}, Path("tcp:13"))["a"]
        finally:
            os.chdir(before)
    assert [one.why for one in (clip, beside)] == ["", ""]
    assert len(pictures(tmp_path / "tcp:13" / "a.mkv")) == 25


def test_a_full_disk(tmp_path: Path) -> None:
    """The command fails, and says of the clip what its file holds."""
    (tmp_path / "jobs.py").write_text(
        "import headrace as hr\npipeline = hr.Pipeline(hr.live_video({'gate': 'tcp://127.0.0.1:1'}),"
        " stages=[hr.stage('see', len)], delivery=hr.jsonl('out.jsonl'))\n"
    )
    with sent(stream_of(tmp_path / "a.ts", 500, "mjpeg", "matroska")) as address:
        clip = f"headrace clip jobs.py:pipeline --source {address} --seconds 15 -o kept --json"
        command = f"ulimit -f 40; exec {sys.executable} -m {clip}"
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    (kept,) = json.loads(done.stdout)["clips"]
    assert kept["why"].startswith("its file cannot be written: ")
    assert 0 < kept["packets"] == len(pictures(Path(tmp_path, kept["file"]))) < 375
    assert kept["num_bytes"] <= (tmp_path / kept["file"]).stat().st_size


def test_a_clock_that_jumps_ahead_ends_a_clip(tmp_path: Path) -> None:
    """An hour that nobody sent is not kept as if it were there."""
    with sent(stream_of(tmp_path / "a.ts", jump=(30, 25 * 3600))) as address:
        clip = keep({"a": address}, tmp_path / "kept", seconds=5.0)["a"]
    assert "jumped ahead" in clip.why
    assert 1.0 < clip.seconds < 1.3


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It keeps the pipeline's streams, and names the command that tunes on the same frames; nothing is overwritten."""
    monkeypatch.chdir(tmp_path)
    code = (
        "import headrace as hr\n"
        "pipeline = hr.Pipeline(hr.live_video({{'gate': '{}'}}, fps=5, size=(32, 24)), stages=[hr.stage('see', len)],\n"
        "    delivery=hr.jsonl('out.jsonl'))\n"
        "clips = hr.Pipeline(hr.video('a.ts'), stages=[hr.stage('see', len)], delivery=hr.jsonl('out.jsonl'))\n"
    )
    with sent(stream_of(tmp_path / "a.ts")) as address:
        Path("jobs.py").write_text(code.format(address))
        asked = ["clip", "jobs.py:pipeline", "--seconds", "1", "-o", "clips"]
        assert main(asked) == 0
        assert (
            "next: headrace tune jobs.py:pipeline --source 'video://clips?fps=5&size=32x24'" in capsys.readouterr().out
        )
        assert main([*asked, "--json"]) == 3
        assert "overwrite" in capsys.readouterr().err
        assert main([*asked[:-1], "more", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["clips"][0]["packets"] == 25
    assert main(["clip", "jobs.py:clips", "-o", "clips"]) == 2
    result = hr.run(
        hr.Pipeline(
            open_address("video://clips?fps=5&size=32x24"), stages=[hr.stage("see", len)], delivery=hr.collect()
        )
    )
    assert result.counters.delivered == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_clips_of_the_command(tmp_path: Path, number: signal.Signals) -> None:
    """They are written as far as they go, and the command says what is there."""
    with sent(stream_of(tmp_path / "a.ts")) as address:
        code = f"import headrace as hr\nsource = hr.live_video({{'gate': {address!r}}}, patience=5)\n"
        code += "pipeline = hr.Pipeline(source, stages=[hr.stage('see', len)], delivery=hr.jsonl('out.jsonl'))\n"
        (tmp_path / "jobs.py").write_text(code)
        command = [
            sys.executable,
            "-m",
            "headrace",
            "clip",
            "jobs.py:pipeline",
            "--seconds",
            "9",
            "-o",
            "kept",
            "--json",
        ]
        ran = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE)
        try:
            until = time.monotonic() + 60
            while not list(tmp_path.glob("kept/*")) and time.monotonic() < until:
                time.sleep(0.02)
            ran.send_signal(number)
            said, _ = ran.communicate(timeout=60)
        finally:
            ran.kill()
    (kept,) = json.loads(said)["clips"]
    assert kept["packets"] > 0


def test_parameters_choose_the_same_frames() -> None:
    """What a source chooses is what the address of clips says."""
    choice = choose(every=1, fps=2.5, keyframes=True, references=True, size=8, region=(0, 0.5, 1, 1), motion=0.005)
    again = open_address(f"video://clips{choice.parameters()}")
    assert again._choice == choice
    assert choose(every=1, fps=None, keyframes=False, size=None, region=None, motion=None).parameters() == ""
