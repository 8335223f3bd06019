"""Answer HTTP requests with a pipeline, or put them into a queue.

    headrace serve jobs.py:pipeline
    curl --data-binary @photo.jpg http://127.0.0.1:8000/v1/jobs
    curl -F image=@photo.jpg 'http://127.0.0.1:8000/v1/jobs?wait=2s'
    curl --json '{"url": "https://example.com/1.jpg"}' http://127.0.0.1:8000/v1/jobs
    headrace serve jobs.py:pipeline --plan plan.toml --port 9000 --deadline 500ms -o runs/served
    headrace serve jobs.py:pipeline --profile -o runs/served
    headrace serve --queue sqlite:///jobs.db

The same module, Plan and spans as `headrace run`: with --profile -o RUN, `headrace diagnose` says what limits it. Requests
share batches: an idle device begins at once, and batches grow while it is busy. What cannot be answered in time is refused
(429, 503).

Clients of Triton and KServe are answered as well, by the Open Inference Protocol at /v2, and over gRPC with --grpc-port.

With --follow the running service changes its model whenever the Plan's file changes: after `headrace optimize -o` or
`headrace ledger rollback`; see `headrace run --help`.

With --queue nothing is computed here: POST /v1/jobs takes {"url", "task", "callback"}, stores it in the queue, and answers 202
with the job's id; workers elsewhere do it.

With --metrics PORT, Prometheus can scrape http://127.0.0.1:PORT/metrics, of all workers together.

`listening on` means that the pipeline could be loaded and clients can connect; `ready`, that an item has gone through the whole
pipeline, as /readyz says it. With --supervise each worker says so for itself, and those who connect before the first is ready
wait for it.

It listens on this machine alone unless --host says otherwise; then give --token-file, and --tls-cert with --tls-key. /livez
and /readyz say how it is. SIGTERM finishes what is inside within the Plan's run.grace_seconds and lets nobody else in; so does
SIGHUP, unless --supervise makes it a rolling restart.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.canary_place import add_canary_argument, make_canary_place
from headrace.cli.companions import add_companion_arguments, companion_options
from headrace.cli.following_argument import add_follow_argument, make_following, read_followed
from headrace.cli.metrics_options import open_before_queue
from headrace.cli.pipeline_arguments import (
    PIPELINE_HELP,
    add_plan_arguments,
    address,
    list_plan_options,
    live_view,
    open_plan,
    positive,
    stdout_kept,
)
from headrace.cli.probes import read_probes
from headrace.cli.profiled import add_profile_argument, check_profile, profile_options
from headrace.cli.refused_text import say_never_let_in
from headrace.cli.terminal import speaker, write

if TYPE_CHECKING:
    from headrace.base.worker_slot import Ended, WorkerSlot
    from headrace.pipeline.definition import Pipeline
    from headrace.pipeline.execute import Result
    from headrace.pipeline.watching import Watch
    from headrace.serve.service import ServeSettings

_say = speaker("serve")
_LONGEST_TOKEN = 4_096
#: Options that mean nothing beside `--queue`.
_OF_A_PIPELINE = (
    "plan", "settings", "deadline", "grpc_port", "probe", "supervise", "follow", "canary", "ledger", "output", "profile",
    "json", "otlp", "recorder", "incidents", "slo", "slo_failed", "drift", "review", "history",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("pipeline", metavar="MODULE:ATTRIBUTE", nargs="?", help=PIPELINE_HELP)
    parser.add_argument(
        "--queue", metavar="QUEUE", type=address, help="put the jobs into this queue instead of doing them"
    )
    add_plan_arguments(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine alone)"
    )
    parser.add_argument("--port", type=_port, default=8000, help="port (default 8000; 0: any that is free)")
    parser.add_argument(
        "--grpc-port", type=_port, metavar="PORT",
        help="speak the Open Inference Protocol over gRPC too, on this port (0: any that is free; extra grpc)",
    )  # fmt: skip
    parser.add_argument("--token-file", metavar="FILE", help="file with the token that clients must send as Bearer")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate (PEM), with those that signed it")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key (PEM)")
    parser.add_argument(
        "--hide-failures", action="store_true",
        help="tell no client what failed in the pipeline, for a service behind a proxy (with another --host it is never told)",
    )  # fmt: skip
    parser.add_argument(
        "--deadline", metavar="TIME", help="of requests that name none, such as 500ms (default: the Plan's, 30s)"
    )
    parser.add_argument(
        "--max-requests", type=positive, metavar="N", help="requests inside at once (default: the Plan's, 1000)"
    )
    parser.add_argument(
        "--probe", metavar="[TASK=]FILE", action="append", default=[],
        help="an item by which the service tries itself; one for each task where they take different ones (default: a "
        "photograph of ours, for images)",
    )  # fmt: skip
    parser.add_argument(
        "--supervise", type=positive, metavar="N",
        help="serve by N worker processes that share the port, and restart those that die; SIGHUP restarts all in turn",
    )  # fmt: skip
    add_follow_argument(parser)
    add_canary_argument(parser)
    parser.add_argument(
        "--ledger", metavar="FILE",
        help="with --canary: the ledger that keeps what becomes of canaries (default: $HEADRACE_LEDGER, else none)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", metavar="RUN", help="write a run folder: spans, errors, plan, environment")
    add_profile_argument(parser)
    parser.add_argument("--force", action="store_true", help="replace what an earlier run left in that folder")
    add_companion_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON (schema headrace.run/1)")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal, and print the table of stages."""
    from headrace.base.errors import SettingsError

    if (args.pipeline is None) == (args.queue is None):
        raise SettingsError("name a pipeline, such as jobs.py:pipeline, or a queue with --queue: one of the two")
    check_profile(args)
    _warn_of_strangers(args)
    if args.queue is not None:
        return _serve_queue(args)
    args.settings += [f'serve.deadline_seconds="{args.deadline}"'] if args.deadline else []
    args.settings += [f"serve.max_requests={args.max_requests}"] if args.max_requests else []
    return _serve_by_several(args) if args.supervise else _serve_pipeline(args)


def _warn_of_strangers(args: argparse.Namespace) -> None:
    from headrace.cli.terminal import say
    from headrace.serve.service import is_loopback

    if not args.token_file and not is_loopback(args.host):
        say(
            f"headrace serve: warning: others can reach {args.host}, and nothing is asked of them: give --token-file FILE, or "
            "let a proxy in front ask who they are"
        )


def _serve_pipeline(args: argparse.Namespace) -> int:
    from headrace.cli.run import print_result, status_of

    with stdout_kept(args.json):
        result = _execute(args, watch=functools.partial(live_view, None))
    print_result(args, result)
    return status_of(result)


def _execute(args: argparse.Namespace, *, watch: Watch | None = None, slot: WorkerSlot | None = None) -> Result:
    """Serve the pipeline that the arguments name."""
    from headrace.cli.loading import load_pipeline
    from headrace.serve.service import serve

    followed = read_followed(args)
    pipeline, plan = load_pipeline(args.pipeline), open_plan(args)
    following = make_following(args, followed, _say)
    pipeline.options = tuple(list_plan_options(args))
    settings = _settings(args, read_probes(args.probe, pipeline))
    if slot is None or (slot.number, slot.generation) == (0, 1):
        _warn_of_untried(settings, pipeline)
    options = profile_options(args, pipeline, plan, watch)
    options.update(
        companion_options(
            *(args, pipeline, plan), slot=slot, watch=options["watch"], instruments=options.get("instruments", ())
        )
    )
    return serve(
        *(pipeline, plan, settings),
        tell=_tell,
        tell_ready=lambda: _say("ready" if slot is None else f"worker {slot.number} is ready"),
        output=args.output,
        force=args.force,
        beside=following or make_canary_place(args, _say),
        slot=slot,
        **options,
    )


def _warn_of_untried(settings: ServeSettings, pipeline: Pipeline) -> None:
    """Say which tasks count as ready although no item has gone through them."""
    if untried := [task for task in pipeline.routes if task not in settings.probes]:
        which, given = ("", "FILE") if untried == [""] else (f" of {', '.join(untried)}", "TASK=FILE")
        _say(
            f"nothing is there to try the pipeline{which} with: /readyz is believed once the models are open, and the first "
            f"client waits for the warm-up; give --probe {given}"
        )


def _serve_by_several(args: argparse.Namespace) -> int:
    """Serve by worker processes that share one listening socket."""
    import headrace.serve.service  # noqa: F401 - once, here: every worker is forked with it
    from headrace.cli.supervising import supervise
    from headrace.serve.http.listening import listen

    args.listening = listen(args.host, args.port, reuse_port=False)
    args.grpc_listening = None if args.grpc_port is None else listen(args.host, args.grpc_port, reuse_port=False)
    addresses = [
        _address(f"{scheme}{'s' if args.tls_cert else ''}", one)
        for scheme, one in (("http", args.listening), ("grpc", args.grpc_listening))
        if one is not None
    ]
    with _answers_kept(args):
        return supervise(
            *(args, _run_worker),
            command="serve",
            has_queue=False,
            begun=lambda: _tell(*addresses),
            stopping=lambda: _refuse_clients(args.listening, args.grpc_listening),
        )


def _address(scheme: str, listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextlib.contextmanager
def _answers_kept(args: argparse.Namespace) -> Iterator[None]:
    """Make the folder in which the workers keep answers for those who ask another one of them later."""
    from headrace.base.crash_recovery import make_own_folder

    args.answers, supervisor = None, os.getpid()
    try:
        args.answers, lock = make_own_folder(Path(tempfile.gettempdir()))
    except OSError as error:
        _say(f"warning: `GET /v1/jobs/ID` is answered only by the worker that took the job: {error}")
        yield
        return
    try:
        yield
    finally:
        if os.getpid() == supervisor:  # a worker, which is a fork, leaves by this way too
            shutil.rmtree(args.answers, ignore_errors=True)
            os.close(lock)


def _refuse_clients(*listening: socket.socket | None) -> None:
    """Let nobody connect any more, in whichever process: who did not come in would wait for an answer in vain."""
    for one in listening:
        if one is not None:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _run_worker(args: argparse.Namespace, slot: WorkerSlot) -> Ended:
    from headrace.cli.run import say_how_it_ended

    return say_how_it_ended(_execute(args, slot=slot), queue="")


def _serve_queue(args: argparse.Namespace) -> int:
    from headrace.base.errors import SettingsError
    from headrace.base.plan import ServePlan
    from headrace.cli import EXIT_DONE
    from headrace.serve.queue_api import serve_queue

    for option in _OF_A_PIPELINE:
        if getattr(args, option):
            shown = option.replace("_", "-").replace("settings", "set")
            raise SettingsError(f"--{shown} is for a pipeline, and with --queue nothing is computed here: leave it out")
    max_requests = args.max_requests or ServePlan().max_requests
    counts = serve_queue(args.queue, _settings(args, {}), max_requests, tell=_tell, watch=open_before_queue(args))
    stored = f"jobs stored: {counts.pop('stored', 0):,}"
    refused = {f"refused.{code}": number for code, number in counts.items()}
    write("\n".join([stored, *say_never_let_in([refused])]))
    return EXIT_DONE


def _tell(*addresses: str) -> None:
    for one in addresses:
        _say(f"listening on {one}{'; POST /v1/jobs' if one.startswith('http') else ''}")


def _settings(args: argparse.Namespace, probes: dict[str, Any]) -> ServeSettings:
    from headrace.base.errors import SettingsError
    from headrace.serve.service import ServeSettings

    if bool(args.tls_cert) != bool(args.tls_key):
        raise SettingsError("--tls-cert and --tls-key go together; one of them is missing")
    return ServeSettings(
        host=args.host,
        port=args.port,
        grpc_port=args.grpc_port,
        token=_read_token(args.token_file),
        tells_failures=False if args.hide_failures else None,
        tls=(args.tls_cert, args.tls_key) if args.tls_cert else None,
        probes=probes,
        listening=getattr(args, "listening", None),
        grpc_listening=getattr(args, "grpc_listening", None),
        answers=getattr(args, "answers", None),
    )


def _read_token(file: str | None) -> str | None:
    from headrace.base.errors import SettingsError

    if file is None:
        return None
    try:
        token = Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--token-file {file}: {error}") from error
    if not token or len(token) > _LONGEST_TOKEN or not token.isprintable() or " " in token:
        raise SettingsError(
            f"--token-file {file}: expected one line without spaces, such as from `openssl rand -hex 32`"
        )
    return token


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"expected 0 to 65535, got {text}")
    return int(text)
