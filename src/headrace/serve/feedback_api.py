"""`POST /v1/feedback`: what users say of answers, which counts for or against a canary.

    {"id": "job-17", "good": false}

The id is the job's, as in its answer. Of several processes another one may have answered it: what this one does not know is
passed on to all, and who knows it counts it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from headrace.pipeline.arms import Arms
from headrace.runs.canary_folder import CanaryFolder, Feedback
from headrace.serve.http.request import Answer, Request, error_answer, json_answer
from headrace.serve.http.routes import Routes

logger = logging.getLogger("headrace")

#: Larger ones hold something else.
_MOST_BYTES = 4096


_decoder = msgspec.json.Decoder(Feedback)


class FeedbackApi:
    """The route.

    Args:
        find_arms: Returns the arms of the run; None: it can have no canary.
        find_folder: Returns the canary's folder where several processes share it; None: this one has answered all.
    """

    def __init__(
        self, find_arms: Callable[[], Arms | None], find_folder: Callable[[], CanaryFolder | None] = lambda: None
    ) -> None:
        self._find_arms = find_arms
        self._find_folder = find_folder

    def add_to(self, routes: Routes) -> None:
        """Add the route."""
        routes.add("POST", "/v1/feedback", self.post)

    def post(self, request: Request) -> Answer:
        """Count what a user says of one answer."""
        try:
            said = _decoder.decode(bytes(request.body[:_MOST_BYTES]))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return error_answer(
                400, "feedback.body", f'expected JSON such as {{"id": "job-17", "good": false}}: {error}'
            )
        arms = self._find_arms()
        if arms is None:
            return error_answer(
                404, "feedback.no_canary", "this service can have no canary; start it with --canary DIR"
            )
        if not arms.note_feedback(said.id, bad=not said.good):
            folder = self._find_folder()
            if folder is not None and arms.has_canary:
                return _pass_on(folder, Feedback(said.id, said.good))
            return error_answer(
                404, "feedback.unknown_job",
                f"job {said.id:.100} was not among the latest that were answered here while there was a canary, or somebody "
                "has said how good its answer was",
            )  # fmt: skip
        return json_answer(202, {"id": said.id, "state": "counted"})


def _pass_on(folder: CanaryFolder, said: Feedback) -> Answer:
    try:
        folder.pass_on(said)
    except OSError as error:
        logger.error("feedback cannot be passed on to the other processes: %s", error)
        return error_answer(503, "feedback.unavailable", "it cannot be noted now; try again", ("Retry-After", "5"))
    return json_answer(202, {"id": said.id, "state": "passed on"})
