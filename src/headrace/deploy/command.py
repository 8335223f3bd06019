"""The command line that every way of deploying starts; settings that differ by place come by environment."""

from __future__ import annotations

from headrace.deploy.target import HTTP_PORT, METRICS_PORT, Target

#: The queue's address: it differs from place to place, and may hold a password.
QUEUE = "HEADRACE_QUEUE"
#: A file with the token that clients of a service must send.
TOKEN_FILE = "/run/secrets/headrace/token"
PLAN = "plan.toml"


def arguments(target: Target, *, folder: str, plan: str, token_file: str = "") -> list[str]:
    """Return the arguments of `headrace`.

    Args:
        target: What is deployed.
        folder: Of the pipeline's files there.
        plan: Path of the Plan there.
        token_file: Of a service that others can reach; empty: it is of this machine alone.
    """
    given = ["serve" if target.is_service else "run", target.pipeline_in(folder)]
    given += ["--plan", plan] if target.has_plan else []
    if target.is_service:
        given += ["--host", "0.0.0.0" if token_file else "127.0.0.1", "--port", str(HTTP_PORT)]
        given += ["--token-file", token_file] if token_file else []
    else:
        given += ["--source", f"env:{QUEUE}"]  # an argument with a password would be seen by all
    given += ["--supervise", str(target.supervise)]
    for network in target.allow:
        given += ["--allow", network]
    host = "0.0.0.0:" if token_file or not target.is_service else ""
    return [*given, "--metrics", f"{host}{METRICS_PORT}", "--log-format", "json"]
