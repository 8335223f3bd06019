"""The pipeline that `benchmarks.crash` kills: small jobs from a queue, a module that takes a few milliseconds, callbacks.

Where it reads and posts is in the environment, because every worker is a new process: CRASH_QUEUE, CRASH_CALLBACK; and how long
a batch takes, CRASH_SECONDS.
"""

import os
import time

import headrace as hr
from headrace.base.errors import ItemRejected


class Doubler(hr.Module):
    """Answers with the number in the job, doubled; refuses what says so."""

    input = hr.BytesInput()

    def preprocess(self, value: bytes) -> int:
        """Return the job's number."""
        if value.endswith(b"!"):
            raise ItemRejected("this job is one of those that nobody can do")
        return int(value)

    def process(self, batch: list[int]) -> list[int]:
        """Return twice each number, after the time that a model takes."""
        time.sleep(float(os.environ.get("CRASH_SECONDS", "0.002")))
        return [2 * number for number in batch]


pipeline = hr.Pipeline(
    hr.queue(os.environ["CRASH_QUEUE"]), module=Doubler(), delivery=hr.callback(os.environ["CRASH_CALLBACK"])
)
