"""Real servers on free ports of the loopback interface; without them, tests skip here and fail in CI."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what} is not installed, and CI must not skip")
    pytest.skip(f"{what} is not installed")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _started(command: list[str], port: int, log: Path) -> subprocess.Popen[bytes]:
    """Return the server's process once it takes connections."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return process
    process.kill()
    process.wait()
    pytest.fail(f"{command[0]} did not start: {log.read_text()[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start redis-server and return its address."""
    pytest.importorskip("redis") if not os.environ.get("CI") else None
    program = shutil.which("redis-server")
    if program is None:
        _missing("redis-server")
    folder = tmp_path_factory.mktemp("redis")
    port = _free_port()
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = _started(command, port, folder / "log")
    yield f"redis://127.0.0.1:{port}/0"
    _stop(process)


@pytest.fixture
def start_redis(redis_server: str, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Return what starts another redis-server with settings and returns its port."""
    processes = []

    def start(*settings: str) -> int:
        while (port := _free_port()) > 55_000:  # the bus of a cluster listens 10,000 above
            pass
        folder = tmp_path / str(port)
        folder.mkdir()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        processes.append(_started([*command, *settings], port, folder / "log"))
        return port

    yield start
    for process in processes:
        _stop(process)


@pytest.fixture(scope="session")
def sqs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a moto server and return its endpoint."""
    program = Path(sys.executable).with_name("moto_server")
    if not program.exists():
        _missing("moto_server")
    port = _free_port()
    log = tmp_path_factory.mktemp("moto") / "log"
    process = _started([str(program), "-H", "127.0.0.1", "-p", str(port)], port, log)
    yield f"http://127.0.0.1:{port}"
    _stop(process)


@pytest.fixture
def late_sound(tmp_path: Path) -> Path:
    """A clip of 20 frames, behind more bytes than FFmpeg looks ahead, and then of 5 with 30 streams of sound."""
    av = pytest.importorskip("av")
    noise = np.random.default_rng(0)

    def write(path: Path, count: int, num_sounds: int) -> bytes:
        with av.open(str(path), "w", format="mpegts") as container:
            video: Any = container.add_stream("mpeg2video", rate=25, options={"qmin": "1", "qmax": "1"})
            video.width, video.height, video.pix_fmt = 640, 480, "yuv420p"
            video.codec_context.bit_rate = 200_000_000
            sounds = [container.add_stream("mp2", rate=44100, layout="mono") for _ in range(num_sounds)]
            for number in range(count):
                image = noise.integers(0, 255, (480, 640, 3), np.uint8)
                container.mux(video.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
                sound = av.AudioFrame.from_ndarray(np.zeros((1, 1764), np.int16), format="s16", layout="mono")
                sound.sample_rate, sound.pts = 44100, number * 1764
                for one in sounds:
                    container.mux(one.encode(sound))
            for one in (video, *sounds):
                container.mux(one.encode(None))
        return path.read_bytes()

    path = tmp_path / "late.ts"
    data = write(path, 20, 0)
    path.write_bytes(data + write(tmp_path / "more.ts", 5, 30))
    (tmp_path / "more.ts").unlink()
    return path
