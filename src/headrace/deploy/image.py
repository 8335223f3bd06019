"""A Containerfile: headrace's image, and the pipeline's files on it."""

from __future__ import annotations

import json

from headrace.deploy.command import PLAN
from headrace.deploy.target import Target

#: Where the pipeline's files are in it.
FOLDER = "/app"


def make_containerfile(target: Target) -> str:
    """Return the Containerfile; it is built in the folder of the pipeline's files."""
    files = [*([target.file] if target.file else []), *target.include]
    lines = [
        "# Made by `headrace deploy`. Build it where the pipeline's files are:",
        f"#   docker build -f Containerfile -t {target.image} .",
        "# BASE is headrace's own image (`make image`), with an engine of yours on it where you need another.",
        "ARG BASE=headrace",
        "FROM ${BASE}",
    ]
    if files:
        lines.append(f"COPY --chown=0:0 --chmod=0444 {json.dumps([*files, f'{FOLDER}/'])}")
    if not target.file:
        lines.append(f"# {target.pipeline.partition(':')[0]} is a module: the base image has to have it installed.")
    lines.append(f"# The Plan is not in it: it comes as /plan/{PLAN}, so that another Plan needs no other image.")
    return "\n".join([*lines, "USER 10001:10001", ""])
