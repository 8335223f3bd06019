"""`POST /v1/feedback`: what users say of answers, which counts for or against a canary.

    {"id": "job-17", "good": false}

The id is the job's, as in its answer.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.pipeline.arms import Arms
from headrace.serve.http.request import Answer, Request, error_answer, json_answer
from headrace.serve.http.routes import Routes

#: Larger ones hold something else.
_MOST_BYTES = 4096


class _Feedback(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    good: bool


_decoder = msgspec.json.Decoder(_Feedback)


class FeedbackApi:
    """The route.

    Args:
        find_arms: Returns the arms of the run; None: it can have no canary.
    """

    def __init__(self, find_arms: Callable[[], Arms | None]) -> None:
        self._find_arms = find_arms

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
            return error_answer(
                404, "feedback.unknown_job",
                f"job {said.id:.100} was not among the latest that were answered here while there was a canary, or somebody "
                "has said how good its answer was",
            )  # fmt: skip
        return json_answer(202, {"id": said.id, "state": "counted"})
