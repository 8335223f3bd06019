"""Loops over clips as people write them, one function each; and headrace over the same clips, frames, sizes and model.

    python -m benchmarks.video.loops '{"name": "pyav", "clips": ["a.mp4"], "model": "m.onnx", "batch": 4}'

prints a line of JSON: frames worked on, seconds from the first read to the last answer, CPU seconds, and the answers. Every
loop takes each fifth frame, shrinks it to 224 x 224, and asks the model.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.video.clips import FPS

EVERY, SIDE = 5, 224
#: Frames that headrace may have decoded before its clock begins; they do not count.
_READ_AHEAD = 4

Frames = Iterator[np.ndarray]
Settings = Mapping[str, Any]


def opencv(clip: str, settings: Settings) -> Frames:
    """OpenCV, passing by with `grab` the frames that are not wanted."""
    import cv2

    capture = cv2.VideoCapture(clip)
    number = 0
    while capture.grab():
        if number % EVERY == 0:
            image = cv2.resize(capture.retrieve()[1], (SIDE, SIDE), interpolation=cv2.INTER_AREA)
            yield cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        number += 1


def pyav(clip: str, settings: Settings) -> Frames:
    """PyAV as its guide advises for speed: threads by themselves, one reformatter, straight to the size."""
    import av
    from av.video.reformatter import VideoReformatter

    reformatter = VideoReformatter()
    with av.open(clip) as container:
        stream = container.streams.video[0]
        if settings.get("decoders", 1) > 1:
            stream.thread_type = "AUTO"
        stream.codec_context.thread_count = settings.get("decoders", 1)
        for number, frame in enumerate(container.decode(stream)):
            if number % EVERY == 0:
                made = reformatter.reformat(frame, SIDE, SIDE, "rgb24", interpolation="AREA")
                yield made.to_ndarray()


def ultralytics(clip: str, settings: Settings) -> Frames:
    """Ultralytics' loader of files."""
    import cv2

    loaders = importlib.import_module("ultralytics.data.loaders")
    for _, images, _ in loaders.LoadImagesAndVideos(clip, vid_stride=EVERY):
        for image in images:
            yield cv2.cvtColor(cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)


def supervision(clip: str, settings: Settings) -> Frames:
    """The generator of `supervision`."""
    import cv2

    for image in importlib.import_module("supervision").get_video_frames_generator(clip, stride=EVERY):
        yield cv2.cvtColor(cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)


def roboflow(clip: str, settings: Settings) -> Frames:
    """The source of Roboflow's `InferencePipeline`, which decodes in a thread of its own and passes by what is not wanted."""
    import cv2

    video = importlib.import_module("streamvision.camera.video_source").VideoSource.init(clip, desired_fps=FPS / EVERY)
    video.start()
    try:
        for frame in video:
            yield cv2.cvtColor(cv2.resize(frame.image, (SIDE, SIDE), interpolation=cv2.INTER_AREA), cv2.COLOR_BGR2RGB)
    finally:
        video.terminate(wait_on_frames_consumption=False, purge_frames_buffer=True)


LOOPS: dict[str, Callable[[str, Settings], Frames]] = {
    loop.__name__: loop for loop in (opencv, pyav, ultralytics, supervision, roboflow)
}


def run(settings: Settings) -> dict[str, Any]:
    """Run a loop, or headrace, in as many processes as its settings say, each with its part of the clips."""
    processes = settings.get("processes", 1)
    if processes == 1:
        return _work(settings, settings["clips"], lambda: None)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.SimpleQueue()
    workers = [
        context.Process(target=_work_apart, args=(settings, settings["clips"][one::processes], barrier, results))
        for one in range(processes)
    ]
    for worker in workers:
        worker.start()
    parts = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    return {
        "answers": {clip: answers for part in parts for clip, answers in part["answers"].items()},
        "frames_before": sum(part["frames_before"] for part in parts),
        "seconds": max(part["ended"] for part in parts) - min(part["began"] for part in parts),
        "cpu_seconds": sum(part["cpu_seconds"] for part in parts),
    }


def _work_apart(settings: Settings, clips: Sequence[str], barrier: Any, results: Any) -> None:
    results.put(_work(settings, clips, barrier.wait))


def _work(settings: Settings, clips: Sequence[str], ready: Callable[[], object]) -> dict[str, Any]:
    return (_run_headrace if settings["name"] == "headrace" else _run_loop)(settings, clips, ready)


def _run_loop(settings: Settings, clips: Sequence[str], ready: Callable[[], object]) -> dict[str, Any]:
    import cv2

    from benchmarks.peers.classifier import Classifier
    from headrace.stages import images

    cv2.setNumThreads(settings.get("threads", 1))
    batch = settings.get("batch", 1)
    model = Classifier(settings["model"], settings.get("threads", 1)).warm_up(batch)
    frames_of = LOOPS[settings["name"]]
    next(iter(frames_of(clips[0], settings)))  # what the first call alone needs, such as imports
    ready()
    began, cpu = time.monotonic(), time.process_time()
    answers: dict[str, list[int]] = {}
    for clip in clips:
        waiting: list[np.ndarray] = []
        answers[clip] = []
        for image in frames_of(clip, settings):
            waiting.append(images.normalize(image))
            if len(waiting) == batch:
                answers[clip] += [label for label, _ in model(waiting)]
                waiting = []
        if waiting:
            answers[clip] += [label for label, _ in model(waiting)]
    ended = time.monotonic()
    return {
        "answers": answers,
        "frames_before": 0,
        "began": began,
        "ended": ended,
        "seconds": ended - began,
        "cpu_seconds": time.process_time() - cpu,
    }


class _Timed:
    """Keeps the answers, and from the first frame that is decoded the time."""

    flush_items, flush_seconds, default_workers, is_instant = 1, 1.0, 1, True

    def __init__(self) -> None:
        self.answers: dict[str, dict[int, int]] = {}
        self.ended = self.cpu = 0.0
        self.lock = threading.Lock()

    def open(self, context: Any) -> None:
        """Do nothing."""

    def deliver(self, job: Any, result: Any) -> bool:
        """Keep one answer."""
        with self.lock:
            self.answers.setdefault(str(job.stream), {})[job.sequence] = result
            self.ended, self.cpu = time.monotonic(), time.process_time()
        return True

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _run_headrace(settings: Settings, clips: Sequence[str], ready: Callable[[], object]) -> dict[str, Any]:
    """Run headrace over clips; the clock begins when the models are warm and the first frame is asked for."""
    from pathlib import Path

    import headrace as hr
    from benchmarks.video.classify import Classify

    class Source(type(hr.video(clips))):  # type: ignore[misc]
        began = cpu = 0.0

        def receive(self, limit: int, wait_seconds: float) -> Any:
            if not Source.began:
                ready()
                Source.began, Source.cpu = time.monotonic(), time.process_time()
            return super().receive(limit, wait_seconds)

    seen = _Timed()
    source = Source(clips, every=EVERY, size=SIDE, threads=settings.get("decoders", 1))
    plan = hr.Plan().with_settings(
        [
            f"model.artifact={settings['model']}",
            f"model.threads={settings.get('threads', 1)}",
            f"process.batch={settings.get('batch', 1)}",
            *settings.get("plan", ()),
        ]
    )
    hr.run(hr.Pipeline(source, module=Classify(), delivery=seen), plan)
    by_name = {Path(clip).name: clip for clip in clips}
    answers = {by_name[name]: [found[number] for number in sorted(found)] for name, found in seen.answers.items()}
    return {
        "answers": answers,
        "frames_before": _READ_AHEAD,
        "began": Source.began,
        "ended": seen.ended,
        "seconds": seen.ended - Source.began,
        "cpu_seconds": seen.cpu - Source.cpu,
    }


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
