"""What `/v1/jobs` takes, and what it answers."""

import base64
import json

import pytest

from headrace.base.passage import Passage
from headrace.serve.door import Ended, Refused, Work
from headrace.serve.http.request import Answer
from headrace.serve.http.routes import Routes
from headrace.serve.jobs_api import JobsApi
from headrace.serve.kept_answers import KeptAnswer, KeptAnswers
from tests.unit.serve.asking import Asker, Later


class Door:
    """Keeps what came."""

    def __init__(self, refused: Refused | None = None) -> None:
        self.works: list[Work] = []
        self.cancelled: list[str] = []
        self._refused = refused
        self.is_refusing = refused is not None
        self.foreseen: list[Work] = []

    def foresee(self, work: Work) -> Refused | None:
        """Refuse by the head."""
        self.foreseen.append(work)
        return self._refused

    def submit(self, work: Work) -> object:
        """Submit."""
        self.works.append(work)
        return self._refused or _Ticket(work.id, self)

    def end(self, result: object = None, code: str = "", status: int = 200) -> None:
        """End."""
        work = self.works[-1]
        encoded = None if code else work.prepare(result)
        work.on_end(Ended(work.id, encoded, code, code and f"{code}: why", status, plan_id="plan-1"))


class _Ticket:
    def __init__(self, job_id: str, door: Door) -> None:
        self.id = job_id
        self._door = door

    def cancel(self) -> None:
        """Cancel."""
        self._door.cancelled.append(self.id)


def routes_of(door: Door, *, later: Later | None = None, calls_back: bool = False) -> Routes:
    """Routes of."""
    routes = Routes()
    JobsApi(door, later or Later(), calls_back=calls_back).add_to(routes)
    return routes


def body_of(answer: Answer) -> dict[str, object]:
    """Body of."""
    return json.loads(answer.body)


def test_the_bytes_of_an_image_come_back_as_its_result() -> None:
    """The bytes of an image come back as its result."""
    door, asker = Door(), Asker()
    request = asker.request("POST", "/v1/jobs?id=photo-1&task=scenes", b"\xff\xd8jpeg", content_type="image/jpeg")
    assert routes_of(door).answer(request) is None
    assert (door.works[0].id, door.works[0].task, door.works[0].payload) == ("photo-1", "scenes", b"\xff\xd8jpeg")
    door.end({"label": "cat"})
    assert asker.answers[0].status == 200
    assert body_of(asker.answers[0]) == {"id": "photo-1", "result": {"label": "cat"}}
    assert ("X-Headrace-Plan", "plan-1") in asker.answers[0].headers


def test_an_envelope_is_that_of_a_job_in_a_queue() -> None:
    """An envelope is that of a job in a queue."""
    door = Door()
    envelope = {"id": "a", "data": base64.b64encode(b"bytes").decode(), "task": "t", "attributes": {"order": 7}}
    request = Asker().request("POST", "/v1/jobs", json.dumps(envelope).encode(), content_type="application/json")
    assert routes_of(door).answer(request) is None
    work = door.works[0]
    assert (work.id, work.task, work.payload, work.attributes) == ("a", "t", b"bytes", {"order": 7})


def test_a_form_carries_a_file_and_fields() -> None:
    """A form carries a file and fields."""
    door = Door()
    body = (
        b'--XX\r\nContent-Disposition: form-data; name="task"\r\n\r\nscenes\r\n'
        b'--XX\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
        b"\xff\xd8 --XX \r\n\r\n\xff\xd9\r\n--XX--\r\n"
    )
    request = Asker().request("POST", "/v1/jobs", body, content_type="multipart/form-data; boundary=XX")
    assert routes_of(door).answer(request) is None
    assert (door.works[0].task, door.works[0].payload) == ("scenes", b"\xff\xd8 --XX \r\n\r\n\xff\xd9")


LONG_HEAD = b'--XX\r\nX: form-data; name="f"; filename="a"' + b"; name=x " * 10_000 + b"\r\n\r\nx\r\n--XX--"


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"", "image/jpeg", "message.payload"),
        (b"{", "application/json", "message.json"),
        (b'{"url": "http://x/1", "colour": 1}', "application/json", "message.field"),
        (b'{"url": "http://x/1", "callback": "http://y/"}', "application/json", "message.callback"),
        (b'{"path": "a.jpg"}', "application/json", "message.payload"),
        (b"--XX--", "multipart/form-data; boundary=XX", "message.form"),
        (b"text", "multipart/form-data", "message.form"),
        (b"--XX\r\nno end", "multipart/form-data; boundary=XX", "message.form"),
        (b"[" * 100_000, "application/json", "message.field"),
        (LONG_HEAD, "multipart/form-data; boundary=XX", "message.form"),
    ],
)
def test_what_is_no_job_is_refused_with_a_code(body: bytes, kind: str, code: str) -> None:
    """What is no job is refused with a code."""
    door = Door()
    answer = routes_of(door).answer(Asker().request("POST", "/v1/jobs", body, content_type=kind))
    assert (answer.status, body_of(answer)["code"]) == (400, code)
    assert door.works == []


def test_an_error_comes_back_with_its_status() -> None:
    """An error comes back with its status."""
    door, asker = Door(), Asker()
    routes_of(door).answer(asker.request("POST", "/v1/jobs", b"x"))
    door.end(code="decode.corrupt", status=422)
    assert asker.answers[0].status == 422
    assert body_of(asker.answers[0]) == {"error": "decode.corrupt: why", "code": "decode.corrupt"}


def test_work_that_is_not_let_in_says_when_to_try_again() -> None:
    """Work that is not let in says when to try again."""
    answer = routes_of(Door(Refused(429, "serve.busy", "full", 3.0))).answer(Asker().request("POST", "/v1/jobs", b"x"))
    assert (answer.status, dict(answer.headers)["Retry-After"]) == (429, "3")


BUSY = Refused(429, "serve.busy", "1,000 requests are inside, at most 1,000", 2.0)


def refuse_early(door: Door, target: str, **headers: str) -> Answer | None:
    """What the gate of a route says of a head."""
    found = routes_of(door).find("POST", target.partition("?")[0])
    assert not isinstance(found, Answer)
    assert found.gate is not None
    return found.gate(Asker().request("POST", target, **headers))


def test_a_service_that_refuses_looks_at_heads_first() -> None:
    """The answer is the same, and no body was read for it."""
    door = Door(BUSY)
    answer = refuse_early(door, "/v1/jobs?task=faces&priority=0", request_timeout_ms="250")
    assert answer is not None
    assert (answer.status, body_of(answer)["code"], dict(answer.headers)["Retry-After"]) == (429, "serve.busy", "2")
    assert (door.foreseen[0].task, door.foreseen[0].priority, door.foreseen[0].deadline_ns) == ("faces", 0, 250_000_000)
    assert not door.works


def test_a_service_that_lets_in_does_not_look_twice() -> None:
    """What a head says is read with the body."""
    door = Door()
    assert refuse_early(door, "/v1/jobs") is None
    assert not door.foreseen


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/v1/jobs", {"content_type": "application/json"}),
        ("/v1/jobs", {"content_type": "multipart/form-data; boundary=x"}),
        ("/v1/jobs", {"prefer": "respond-async"}),
        ("/v1/jobs?wait=2s", {}),
        ("/v1/jobs?callback=http://a.example/", {}),
        ("/v1/jobs", {"request_timeout_ms": "soon"}),
        ("/v1/jobs?priority=7", {}),
    ],
)
def test_what_a_head_does_not_tell_is_left_to_the_handler(target: str, headers: dict[str, str]) -> None:
    """It may be the second try of a job that is inside, which gets its id; or it is at fault and hears of that."""
    assert refuse_early(Door(BUSY), target, **headers) is None


@pytest.mark.parametrize("how", ["prefer", "callback"])
def test_who_does_not_wait_gets_an_id_and_asks_for_the_result(how: str) -> None:
    """Who does not wait gets an id and asks for the result."""
    door, asker = Door(), Asker()
    routes = routes_of(door, calls_back=True)
    if how == "prefer":
        request = asker.request("POST", "/v1/jobs?id=a/1", b"x", prefer="respond-async")
    else:
        body = b'{"url": "http://x/1", "id": "a/1", "callback": "http://y/"}'
        request = asker.request("POST", "/v1/jobs", body, content_type="application/json")
    accepted = routes.answer(request)
    assert (accepted.status, dict(accepted.headers)["Location"]) == (202, "jobs/a%2F1")
    assert body_of(get(routes, "a/1")) == {"id": "a/1", "state": "working"}
    door.end([1, 2])
    assert body_of(get(routes, "a/1"))["result"] == [1, 2]


def get(routes: Routes, job_id: str) -> Answer | None:
    """Get."""
    return routes.answer(Asker().request("GET", f"/v1/jobs/{job_id}"))


def test_a_job_that_was_answered_202_is_found_until_it_is_old() -> None:
    """A job that was answered 202 is found until it is old."""
    door = Door()
    routes = routes_of(door)
    assert routes.answer(Asker().request("POST", "/v1/jobs?id=a", b"x", prefer="respond-async")).status == 202
    assert body_of(get(routes, "a")) == {"id": "a", "state": "working"}
    assert routes.answer(Asker().request("POST", "/v1/jobs?id=a", b"x", prefer="respond-async")).status == 202
    assert len(door.works) == 1, "a second try of one request is not a second job"
    door.end([1, 2])
    assert body_of(get(routes, "a")) == {"id": "a", "result": [1, 2]}
    assert get(routes, "b").status == 404


def test_a_job_that_was_not_done_is_tried_again_under_its_id() -> None:
    """Its client is told to, and what it asks for next is no answer of the first try."""
    door = Door()
    routes = routes_of(door)
    routes.answer(Asker().request("POST", "/v1/jobs?id=a", b"x", prefer="respond-async"))
    door.end(code="serve.stopping", status=503)
    stopped = get(routes, "a")
    assert (stopped.status, dict(stopped.headers)["Retry-After"]) == (503, "1")
    routes.answer(Asker().request("POST", "/v1/jobs?id=a", b"x", prefer="respond-async"))
    assert (len(door.works), body_of(get(routes, "a"))["state"]) == (2, "working")
    door.end(3)
    assert body_of(get(routes, "a"))["result"] == 3


def test_a_job_whose_process_is_gone_is_said_to_be_lost() -> None:
    """With a code, and when to send it again."""

    class Kept(KeptAnswers):
        def find(self, job_id: str) -> KeptAnswer | None:
            """Find one that is lost."""
            return KeptAnswer(is_lost=True)

        def open(self, job_id: str, content: str = "") -> KeptAnswer:
            """Fail as a full disk does."""
            raise OSError("full")

    routes = Routes()
    JobsApi(Door(), Later(), calls_back=False, kept=Kept()).add_to(routes)
    lost = get(routes, "a")
    assert (lost.status, body_of(lost)["code"], dict(lost.headers)["Retry-After"]) == (503, "serve.lost", "1")
    unkept = routes.answer(Asker().request("POST", "/v1/jobs?id=a", b"x", prefer="respond-async"))
    assert (unkept.status, body_of(unkept)["code"], dict(unkept.headers)["Retry-After"]) == (503, "serve.no_room", "1")


def test_who_waits_for_a_while_gets_the_result_or_an_id() -> None:
    """Who waits for a while gets the result or an id."""
    door, asker, later = Door(), Asker(), Later()
    routes = routes_of(door, later=later)
    assert routes.answer(asker.request("POST", "/v1/jobs?id=a&wait=2s", b"x")) is None
    assert [seconds for seconds, _ in later.calls] == [2.0]
    later.calls[0][1]()
    door.end(3)
    assert [answer.status for answer in asker.answers] == [202]
    assert body_of(get(routes, "a"))["result"] == 3


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("respond-async, wait=10", 10.0),
        ('Respond-Async;x=1, Wait = "2"', 2.0),
        ("respond-async, wait=999999999", 60.0),
        ("respond-async, wait=soon", 0.0),
    ],
)
def test_a_preference_may_say_for_how_long(prefer: str, seconds: float) -> None:
    """As RFC 7240 has it: what is preferred and cannot be had is no error."""
    door, later = Door(), Later()
    answer = routes_of(door, later=later).answer(Asker().request("POST", "/v1/jobs?id=a", b"x", prefer=prefer))
    assert (answer is None) == (seconds > 0)
    assert [length for length, _ in later.calls] == ([seconds] if seconds else [])


def test_who_prefers_something_else_waits_for_the_result() -> None:
    """`wait` alone asks for no other answer."""
    door, later = Door(), Later()
    for prefer in ("wait=10", "return=minimal", "no-respond-async"):
        assert routes_of(door, later=later).answer(Asker().request("POST", "/v1/jobs", b"x", prefer=prefer)) is None
    assert later.calls == []


def test_who_tries_again_while_it_is_worked_on_waits_too() -> None:
    """As long as it said, for the one job; and gets an id if there is no result then."""
    door, later, patient, hasty = Door(), Later(), Asker(), Asker()
    routes = routes_of(door, later=later)
    assert routes.answer(Asker().request("POST", "/v1/jobs?id=a", b"x", prefer="respond-async")).status == 202
    assert routes.answer(patient.request("POST", "/v1/jobs?id=a&wait=1s", b"x")) is None
    assert routes.answer(hasty.request("POST", "/v1/jobs?id=a&wait=60ms", b"x")) is None
    for _ in range(2):
        due, later.calls = later.calls, []
        for _, call in due:
            call()
    assert ([one.status for one in hasty.answers], patient.answers) == ([202], [])
    door.end(3)
    later.calls.pop()[1]()
    assert (patient.answers[0].status, body_of(patient.answers[0])["result"], len(door.works)) == (200, 3, 1)
    assert later.calls == []


def test_a_second_try_hears_that_the_first_was_not_let_in() -> None:
    """Nobody works on that job: it is to be sent again."""
    later, asker, kept, routes = Later(), Asker(), KeptAnswers(), Routes()
    JobsApi(Door(), later, calls_back=False, kept=kept).add_to(routes)
    assert routes.answer(Asker().request("POST", "/v1/jobs?id=a", b"x", prefer="respond-async")).status == 202
    assert routes.answer(asker.request("POST", "/v1/jobs?id=a&wait=1s", b"x")) is None
    kept.drop("a")
    later.calls.pop()[1]()
    assert (asker.answers[0].status, body_of(asker.answers[0])["code"], later.calls) == (503, "serve.lost", [])


def test_who_tries_again_and_waits_gets_the_result_that_is_there() -> None:
    """Its first answer may have been lost; nobody has to ask elsewhere for what is here."""
    door = Door()
    routes = routes_of(door)
    for _ in range(2):
        assert routes.answer(Asker().request("POST", "/v1/jobs?id=a", b"x", prefer="respond-async")).status == 202
    door.end(3)
    again = routes.answer(Asker().request("POST", "/v1/jobs?id=a&wait=2s", b"x"))
    assert (again.status, body_of(again)["result"], len(door.works)) == (200, 3, 1)


def test_json_that_comes_as_an_image_is_told_how_to_come() -> None:
    """As `curl -d` sends it."""
    for body, is_told in ((b'{"url": "http://x/1"}', True), (b"no image", False)):
        door, asker = Door(), Asker()
        routes_of(door).answer(
            asker.request("POST", "/v1/jobs", body, content_type="application/x-www-form-urlencoded")
        )
        door.end(code="decode.format", status=422)
        assert ("curl --json" in str(body_of(asker.answers[0])["error"])) == is_told


def test_a_client_that_is_gone_cancels_its_job() -> None:
    """A client that is gone cancels its job."""
    door = Door()
    request = Asker().request("POST", "/v1/jobs?id=a", b"x")
    routes_of(door).answer(request)
    request.note_gone()
    assert door.cancelled == ["a"]


def test_a_request_says_how_long_it_waits_and_whether_it_goes_first() -> None:
    """By a header, or by its job; the earlier one counts."""
    door = Door()
    envelope = json.dumps({"data": "eA==", "deadline": 4e9}).encode()
    request = Asker().request(
        "POST", "/v1/jobs?priority=0", envelope, content_type="application/json", request_timeout_ms="250"
    )
    request.received_ns = 1_000
    assert routes_of(door).answer(request) is None
    assert (door.works[0].deadline_ns, door.works[0].priority) == (250_001_000, 0)


@pytest.mark.parametrize(
    ("target", "headers", "code"),
    [
        ("/v1/jobs?priority=high", {}, "message.priority"),
        ("/v1/jobs", {"request_timeout_ms": "soon"}, "message.timeout"),
    ],
)
def test_a_wish_that_cannot_be_read_is_refused(target: str, headers: dict[str, str], code: str) -> None:
    """With 400, and nothing is let in."""
    door = Door()
    answer = routes_of(door).answer(Asker().request("POST", target, b"image", **headers))
    assert answer is not None
    assert (answer.status, body_of(answer)["code"], door.works) == (400, code, [])


def test_timings_are_told_to_who_asks() -> None:
    """`?timings=1` has passages noted, and told with the answer; otherwise nobody takes notes."""
    door, asker = Door(), Asker()
    routes = routes_of(door)
    routes.answer(asker.request("POST", "/v1/jobs", b"x"))
    assert door.works[0].passages is None
    routes.answer(asker.request("POST", "/v1/jobs?timings=1", b"x"))
    door.works[1].passages.append(Passage("process", 0, 3_000_000, 2))
    door.end(1)
    told = dict(asker.answers[0].headers)["Server-Timing"]
    assert told.startswith('process;dur=3.000;desc="batch of 2", total;dur=')


@pytest.mark.parametrize("query", ["priority=2", "timings=yes"])
def test_flags_are_0_or_1(query: str) -> None:
    """Anything else is refused with what was expected."""
    answer = routes_of(Door()).answer(Asker().request("POST", f"/v1/jobs?{query}", b"x"))
    assert (answer.status, body_of(answer)["code"]) == (400, f"message.{query.partition('=')[0]}")
    assert "expected 0" in body_of(answer)["error"]


def test_a_reason_that_is_no_unicode_or_long_is_told_all_the_same() -> None:
    """Whatever a user's exception says, its request is answered, in so many characters."""
    door, asker = Door(), Asker()
    routes_of(door).answer(asker.request("POST", "/v1/jobs", b"x"))
    work = door.works[-1]
    work.on_end(Ended(work.id, None, "serve.failed", "a\ud800b" + "x" * 5_000_000, 500))
    assert asker.answers[0].status == 500
    assert str(body_of(asker.answers[0])["error"]).startswith("a\\ud800bxxx")
    assert len(asker.answers[0].body) < 10_000


def test_a_wait_may_be_a_bare_number_of_seconds() -> None:
    """As in `Prefer: wait=2`, and as `--deadline 2` of the command."""
    later = Later()
    assert routes_of(Door(), later=later).answer(Asker().request("POST", "/v1/jobs?wait=2", b"x")) is None
    assert [seconds for seconds, _ in later.calls] == [2.0]


def test_nobody_waits_for_days() -> None:
    """Each wait keeps a timer, so there is a bound."""
    answer = routes_of(Door()).answer(Asker().request("POST", "/v1/jobs?wait=48h", b"x"))
    assert (answer.status, body_of(answer)["code"]) == (400, "message.wait")


def test_an_id_that_comes_again_with_another_content_is_refused() -> None:
    """The kept answer is not this request's: 409, while it is worked on and after."""
    door = Door()
    routes = routes_of(door)

    def send(target: str, body: bytes) -> int:
        return routes.answer(Asker().request("POST", target, body, prefer="respond-async")).status

    assert send("/v1/jobs?id=a", b"x") == 202
    assert send("/v1/jobs?id=a", b"y") == 409
    assert send("/v1/jobs?id=a&task=other", b"x") == 409
    door.end(1)
    assert (send("/v1/jobs?id=a", b"y"), send("/v1/jobs?id=a", b"x")) == (409, 202)
    assert len(door.works) == 1


FORM = (
    b'--XX\r\nContent-Disposition: form-data; name="%s"\r\n\r\nv\r\n'
    b'--XX\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\nx\r\n--XX--\r\n'
)


@pytest.mark.parametrize(
    ("target", "body", "kind", "said"),
    [
        ("/v1/jobs?tsak=faces", b"x", "image/jpeg", "no parameter 'tsak'; there is id, task, callback, wait"),
        ("/v1/jobs?id=a&id=b", b"x", "image/jpeg", "id stands more than once behind the question mark; expected once"),
        ("/v1/jobs?task=faces", b'{"data": "eA=="}', "application/json", "task stands in the JSON"),
        ("/v1/jobs", FORM % b"tsak", "multipart/form-data; boundary=XX", "no field of a form 'tsak'"),
    ],
)
def test_what_would_be_lost_silently_is_refused(target: str, body: bytes, kind: str, said: str) -> None:
    """Misspelt parameters and fields, and those that do not count, are named."""
    door = Door()
    answer = routes_of(door).answer(Asker().request("POST", target, body, content_type=kind))
    assert (answer.status, body_of(answer)["code"], door.works) == (400, "message.parameter", [])
    assert said in str(body_of(answer)["error"])


def test_an_encoded_body_is_refused_with_what_is_taken() -> None:
    """A gzipped image is no image: 415, and the answer says how to send it (RFC 9110, 15.5.16)."""
    door = Door()
    answer = routes_of(door).answer(Asker().request("POST", "/v1/jobs", b"\x1f\x8b", content_encoding="gzip"))
    assert (answer.status, body_of(answer)["code"], door.works) == (415, "message.coding", [])
    assert ("Accept-Encoding", "identity") in answer.headers
    assert routes_of(door).answer(Asker().request("POST", "/v1/jobs", b"x", content_encoding="identity")) is None


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", False),
        ("no trace\x1b[2J", False),
    ],
)
def test_a_job_belongs_to_the_trace_of_its_request(given: str, *, kept: bool) -> None:
    """A good `traceparent` becomes an attribute; a bad one is left out."""
    door, asker = Door(), Asker()
    routes_of(door).answer(asker.request("POST", "/v1/jobs", b"\xff\xd8", content_type="image/jpeg", traceparent=given))
    assert door.works[0].attributes == ({"traceparent": given} if kept else {})


@pytest.mark.parametrize("where", ["parameter", "header", "header of JSON", "form"])
def test_a_name_is_as_long_as_in_a_queue_however_it_comes(where: str) -> None:
    """Names of jobs are kept with their answers, so that their lengths are bounded."""
    door, name = Door(), "n" * 1_025
    target, body, headers = "/v1/jobs", b"x", {}
    if where == "parameter":
        target = f"/v1/jobs?id={name}"
    elif where == "form":
        body = (
            b'--B\r\nContent-Disposition: form-data; name="id"\r\n\r\n'
            + name.encode()
            + b"\r\n--B\r\nContent-Disposition: "
            b'form-data; name="image"; filename="a"\r\n\r\nx\r\n--B--\r\n'
        )
        headers = {"content_type": "multipart/form-data; boundary=B"}
    else:
        headers = {"idempotency_key": name}
    if where == "header of JSON":
        body, headers["content_type"] = b'{"data": "eA=="}', "application/json"
    answer = routes_of(door).answer(Asker().request("POST", target, body, **headers))
    assert (answer.status, body_of(answer)["code"], door.works) == (413, "message.size", [])


class Broken(KeptAnswers):
    """Keeps what it is given, and can neither note an end nor find anything."""

    def close(self, job_id: str, ended: Ended) -> None:
        """Fail in a way that nobody thought of."""
        raise TypeError("no such answer")

    def find(self, job_id: str) -> KeptAnswer | None:
        """Fail as where no descriptor is left."""
        raise OSError(24, "Too many open files")


def test_who_waits_is_answered_where_answers_can_be_neither_kept_nor_found() -> None:
    """With the result that is there, or with a code: never with nothing."""
    door, later, first, second = Door(), Later(), Asker(), Asker()
    routes = Routes()
    JobsApi(door, later, calls_back=False, kept=Broken()).add_to(routes)
    assert routes.answer(first.request("POST", "/v1/jobs?id=a&wait=2s", b"x")) is None
    assert routes.answer(second.request("POST", "/v1/jobs?id=a&wait=2s", b"x")) is None
    later.calls[-1][1]()
    door.end(3)
    assert (second.answers[0].status, body_of(second.answers[0])["code"]) == (503, "serve.no_room")
    assert (first.answers[0].status, body_of(first.answers[0])["result"]) == (200, 3)


def test_an_answer_that_cannot_be_made_is_a_500(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no memory for a large one."""
    door, asker = Door(), Asker()
    routes_of(door).answer(asker.request("POST", "/v1/jobs", b"x"))

    def fail(*_: object) -> Answer:
        raise MemoryError

    monkeypatch.setattr("headrace.serve.jobs_api.json_answer", fail)
    door.end(3)
    assert (asker.answers[0].status, body_of(asker.answers[0])["code"]) == (500, "serve.answer")
