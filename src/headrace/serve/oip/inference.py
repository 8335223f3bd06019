"""One request from its jobs to its response.

How this works: each item is submitted at the door as a job. The last one that ends makes the response, in the thread that ended
it. The first one that fails, or is refused, ends the request, and the others are cancelled: nobody would read their answers.
Whoever ends the request does so once; what its jobs say after that is not heard.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import DeliveryRejected
from headrace.base.records import Payload
from headrace.pipeline.definition import Pipeline
from headrace.serve.door import Door, Ended, Refused, Ticket, Work
from headrace.serve.oip.failure import OipError
from headrace.serve.oip.items import RESULT, Row, outputs_of, payloads_of, read_row
from headrace.serve.oip.messages import InferRequest, InferResponse
from headrace.serve.oip.models import VERSION, ServedModel, models_of
from headrace.serve.oip.statistics import Statistics

logger = logging.getLogger("headrace")

#: The status of what may be there in a moment.
_LATER = 503
#: Hears the response, or why there is none; once, from any thread, and must not block.
Done = Callable[[InferResponse | OipError], object]


class Inference:
    """Answers requests with the models of a pipeline; thread-safe.

    Args:
        pipeline: Whose models these are.
        door: Where their jobs go in.
        clock: For deadlines and statistics; the run's.

    Attributes:
        models: By name.
        statistics: Of them; also an observer for the run.
    """

    def __init__(self, pipeline: Pipeline, door: Door, clock: Clock | None = None) -> None:
        self.models: Mapping[str, ServedModel] = models_of(pipeline)
        self.statistics = Statistics(pipeline)
        self._door = door
        self._clock = clock or SystemClock()

    def find(self, name: str, version: str = "") -> ServedModel:
        """Return a model.

        Raises:
            OipError: If there is no such model, or no such version of it.
        """
        model = self.models.get(name)
        if model is None:
            raise OipError(
                "oip.unknown_model", f"there is no model {name:.100}; there is {', '.join(self.models):.500}", 404
            )
        if version not in ("", VERSION):
            raise OipError(
                "oip.unknown_version",
                f"model {name} has no version {version:.100}; leave it out, or ask for {VERSION}",
                404,
            )
        return model

    def learn(self, task: str, result: Any) -> None:
        """Note what a task's module returned for an item of the service's own, so that clients are told before their first."""
        model = next(model for model in self.models.values() if model.task == task)
        with contextlib.suppress(
            DeliveryRejected, OipError
        ):  # whoever asks for such a result is told why there is none
            model.learn_outputs(outputs_of([read_row(result)], ()))

    def start(
        self,
        model: ServedModel,
        request: InferRequest,
        done: Done,
        *,
        received_ns: int | None = None,
        deadline_ns: int | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> RunningRequest:
        """Let the items of a request in.

        Args:
            model: Which one.
            request: Checked against the model's input.
            done: Hears how it ended.
            received_ns: When its first byte came; None: now.
            deadline_ns: Of the transport; the request's own timeout may be earlier. None: none.
            attributes: Of its jobs; None: they have none.

        Raises:
            OipError: If the request holds no items.
        """
        received_ns = received_ns or self._clock.now_ns()
        if request.timeout_us:
            own_ns = received_ns + request.timeout_us * 1_000
            deadline_ns = own_ns if deadline_ns is None else min(own_ns, deadline_ns)
        payloads = payloads_of(request.inputs)
        running = RunningRequest(
            model, request, len(payloads), partial(self._count, model, received_ns, len(payloads), done)
        )
        running.submit(self._door, payloads, received_ns, deadline_ns, attributes or {})
        return running

    def _count(
        self, model: ServedModel, received_ns: int, num_items: int, done: Done, outcome: InferResponse | OipError
    ) -> None:
        ns = max(0, self._clock.now_ns() - received_ns)
        is_good = isinstance(outcome, InferResponse)
        self.statistics.note_request(model.name, is_good=is_good, num_items=num_items, ns=ns)
        done(outcome)


class RunningRequest:
    """A request on its way; thread-safe.

    Args:
        model: Which it asks.
        request: The request.
        num_items: Jobs that it becomes.
        done: Hears how it ended.
    """

    def __init__(self, model: ServedModel, request: InferRequest, num_items: int, done: Done) -> None:
        self._model = model
        self._request = request
        self._done = done
        self._rows: list[Row | None] = [None] * num_items
        self._left = num_items
        self._tickets: list[Ticket] = []
        self._is_over = False
        self._lock = threading.Lock()

    def submit(
        self,
        door: Door,
        payloads: Sequence[Payload],
        received_ns: int,
        deadline_ns: int | None,
        attributes: Mapping[str, Any],
    ) -> None:
        """Let the items in, until one is refused or has failed."""
        whole = any(one.name == RESULT for one in self._request.outputs)
        for index, payload in enumerate(payloads):
            if self._is_over:
                return
            work = Work(
                payload=payload,
                on_end=partial(self._note_end, index),
                prepare=partial(read_row, whole=whole),
                task=self._model.task,
                attributes=attributes,
                deadline_ns=deadline_ns,
                received_ns=received_ns,
                priority=0 if self._request.is_urgent else 1,
                has_company=len(payloads) > 1,
            )
            ticket = door.submit(work)
            if isinstance(ticket, Refused):
                self._end(OipError(ticket.code, ticket.reason, ticket.status, ticket.retry_after_seconds))
                return
            self._keep(ticket)

    def cancel(self) -> None:
        """Note that nobody waits for it any more."""
        self._end(OipError("client.gone", "the client went away before the answer", 499))

    def _keep(self, ticket: Ticket) -> None:
        with self._lock:
            is_over = self._is_over
            if not is_over:
                self._tickets.append(ticket)
        if is_over:
            ticket.cancel()

    def _note_end(self, index: int, ended: Ended) -> None:
        if ended.code:
            which = f"item {index} of {len(self._rows)}: " if len(self._rows) > 1 else ""
            again = 1.0 if ended.status == _LATER else None
            self._end(OipError(ended.code, which + ended.reason, ended.status, again))
            return
        with self._lock:
            self._rows[index] = ended.result
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._end(self._respond(ended.plan_id))

    def _respond(self, plan_id: str) -> InferResponse | OipError:
        """Return the response; an error of ours must not end the thread that happened to bring the last result."""
        try:
            outputs = outputs_of([row for row in self._rows if row is not None], self._request.outputs)
        except OipError as error:
            return error
        except Exception:
            logger.exception("the results of model %s could not be put together", self._model.name)
            return OipError("oip.internal", "the results could not be put together; the server's log says why", 500)
        self._model.learn_input(self._request.inputs[0])
        self._model.learn_outputs(outputs)
        return InferResponse(
            model=self._model.name, version=VERSION, id=self._request.id, outputs=outputs, plan_id=plan_id
        )

    def _end(self, outcome: InferResponse | OipError) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            # Jobs know this request, and so does whoever is told: circles would be left to the garbage collector.
            tickets, self._tickets = self._tickets, []
            done, self._done = self._done, _ignore
        if isinstance(outcome, OipError):
            for ticket in tickets:
                ticket.cancel()
        done(outcome)


def _ignore(outcome: InferResponse | OipError) -> None:
    """Do nothing: whoever asked has been told."""
