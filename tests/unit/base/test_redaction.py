"""What looks like a secret is in no line."""

import logging
import time

import pytest

from headrace.base.error_origin import find_origin
from headrace.base.errors import ItemFailed, ItemRejected, SettingsError, as_item_error
from headrace.base.redaction import hide_secrets_in_text
from headrace.cli import _ShowableFormatter
from headrace.compare.elsewhere import _refuse
from headrace.sources.frames import error_text


@pytest.mark.parametrize(
    "text",
    [
        "GET https://user:SECRET@example.com/a.jpg failed",
        "redis://:SECRET@host/0",
        "amqp://user:SECRET SECRET@host/x refused",
        "https://user:SECRET/SECRET@host:80/a failed",
        "redis://:SECRET/SECRET@host:6379/0",
        "https://s3/b?X-Amz-Credential=SECRET&X-Amz-Signature=SECRET&X-Amz-Security-Token=SECRET",
        "https://a.blob/x?sv=1&sig=SECRET%3D&se=2",
        "https://maps/?key=SECRET",
        "https://h/?AWSAccessKeyId=SECRET",
        "password=SECRET, next",
        "db_password=SECRET",
        "{'api_key': 'SECRET', 'n': 1}",
        '{"token": "SECRET", "n": 1}',
        "Authorization: Bearer SECRETSECRET",
        "authorization: Basic SECRET1234==",
        "whsec_SECRETSECRET",
        "AKIASECRETSECRETSECR",
        "eyJSECRETSECRET.SECRET.SECRET",
        "Connection(host='h', password='SECRET')",
        'login(token="SECRET")',
        "password = SECRET",
        "secret_key=SECRET",
        "django's secretkey = 'SECRET'",
        "Password SECRET",
        "the password is SECRET!",
        "cannot log in as me:SECRET@db.example.com",
        "me:SECRET@10.0.0.1:5432/jobs refused",
        "https://h/callback?code=SECRET&state=SECRET",
        "{'api_keys': 1, 'token': b'SECRET', 'api_key': ['SECRET', 'SECRET']}",
        r'{"token": "a\"SECRET"}',
        r'"{\"token\": \"SECRET\"}"',
        "https%3A%2F%2Fs3%2Fa%3Fsig%3DSECRET",
        "AccountName=a;AccountKey=SECRET==;EndpointSuffix=core.windows.net",
        "X-Api-Key: SECRET1",
        "password: SECRET1",
        "Cookie: session=SECRET1",
        "tool --api-key SECRET1",
        "ghp_SECRET0123456789",
        "sk-proj-SECRET0123456789",
        "-----BEGIN RSA PRIVATE KEY-----\nSECRET\nSECRET\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_is_hidden(text: str) -> None:
    """Whatever its form."""
    assert "SECRET" not in hide_secrets_in_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "http.token: the token is empty; expected a secret, or None",
        "https://example.com/photos/1.jpg?w=200 answered 404, expected 200",
        "process: item a@b: ValueError: no (jobs.py:3)",
        "sqlite:///jobs.db?queue=jobs",
        "http://localhost:8000/a failed, ask bob@example.com",
        "http://[::1]:80/ failed, ask bob@example.com",
        "https://host: not found, ask bob@example.com",
        "password is required; Password for the receiver was not given",
        "https://h/x?status_code=404&encoded=1 by a@b.c at 10:30 (jobs.py:3)",
        "task-4711-front-door-camera-2026: disk-0123456789-abcdefgh is full",
        "--token wants a file; the token: none",
    ],
)
def test_other_text_stays(text: str) -> None:
    """Our own messages are as they were."""
    assert hide_secrets_in_text(text) == text


@pytest.mark.parametrize(
    "part",
    [
        "?a",
        "://",
        "token",
        '"token":',
        "&&&key",
        "x" * 50 + "=",
        "eyJ" * 5,
        "bearer ",
        "token-",
        "auth: ",
        "--pwd ",
        "token='",
        "-----BEGIN PRIVATE KEY-----",
        "sk-",
    ],
)
def test_hostile_text_takes_no_time(part: str) -> None:
    """No pattern goes over the text again and again: 16 KB take milliseconds of CPU, not minutes."""
    text = (part * 20_000)[:16_384]
    began = time.process_time()
    hide_secrets_in_text(text)
    assert time.process_time() - began < 2.0  # it is 0.01 s or so; a pattern that is quadratic takes minutes


def test_a_long_text_is_searched_at_its_ends() -> None:
    """A million characters of an answer that somebody raised take no second of the worker's time."""
    text = hide_secrets_in_text("token=SECRET " + "<p class='key'>hello</p> " * 40_000 + "password=SECRET")
    assert "SECRET" not in text
    assert len(text) < 20_000


_SAYS = "cannot reach https://bob:hunter2@api/v1?api_key=SECRETKEY123"


class _Raised(ItemFailed):
    pass


@pytest.mark.parametrize(
    "error",
    [RuntimeError(_SAYS), ItemRejected(_SAYS), _Raised(f"fetch.failed: {_SAYS}"), OSError(28, _SAYS), KeyError(_SAYS)],
)
def test_reasons_of_failures_have_no_secrets(error: Exception) -> None:
    """What an exception says goes into run folders, summaries, dead letters and answers."""
    try:
        raise error
    except Exception as caught:
        found = as_item_error(caught).locate("read", "https://bucket/a?key=1")
    assert "hunter2" not in str(found)
    assert "SECRETKEY" not in str(found)
    assert str(found).startswith("read: item https://bucket/a?key=1: ")  # the id is what jobs are found by


def test_lines_of_code_in_a_traceback_have_no_secrets() -> None:
    """The message may stand in the line that raises."""
    try:
        raise RuntimeError("cannot reach https://bob:hunter2@api/v1?api_key=SECRETKEY123")
    except RuntimeError as error:
        origin = find_origin(error)
    assert origin is not None
    assert "raise RuntimeError" in origin.traceback
    assert "hunter2" not in origin.traceback
    assert "SECRETKEY" not in origin.traceback


def test_a_log_line_for_people_has_no_secrets() -> None:
    """Nor have the frames of what is logged with an exception."""
    error = RuntimeError(_SAYS)
    record = logging.LogRecord("users", logging.ERROR, "", 1, "failed: %s", (_SAYS,), (type(error), error, None))
    line = _ShowableFormatter("%(message)s").format(record)
    assert line.count("cannot reach") == 2
    assert "hunter2" not in line


def test_errors_of_streams_and_of_other_processes_have_no_secrets() -> None:
    """They are made into text of their own."""
    assert "hunter2" not in error_text(OSError(5, _SAYS)) + error_text(ValueError(_SAYS))
    assert "hunter2" not in _refuse(RuntimeError(_SAYS)).message + _refuse(SettingsError(_SAYS)).message


def test_a_password_that_is_a_number_is_hidden_and_what_is_hidden_stays() -> None:
    """Counts of tokens and addresses whose password is hidden already are left as they are."""
    assert hide_secrets_in_text('{"password": 12345, "tokens": 5}') == '{"password": "...", "tokens": 5}'
    assert hide_secrets_in_text("redis://me:...@host/0 refused") == "redis://me:...@host/0 refused"
