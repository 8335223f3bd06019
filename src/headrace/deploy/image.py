"""A Containerfile: headrace's image, and the pipeline's files on it."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.deploy.command import PLAN
from headrace.deploy.target import Target

#: Where the pipeline's files are in it.
FOLDER = "/app"


def make_containerfile(target: Target) -> str:
    """Return the Containerfile; it is built in the folder that the names of the files are of."""
    lines = [
        "# Made by `headrace deploy`. Build it from the folder that the names below are of:",
        f"#   docker build -f deploy/Containerfile -t {target.image} .",
        "# BASE is headrace's own image (`make image`), with an engine of yours on it where you need another.",
        "ARG BASE=headrace",
        "FROM ${BASE}",
    ]
    by_folder: dict[str, list[str]] = {}
    for name, place in target.places.items():
        if Path(name).is_dir():  # what is in it is copied, with the modes that it has: 0444 would close its folders
            lines.append(f"COPY --chown=0:0 {json.dumps([name, f'{FOLDER}/{place}/'])}")
        else:
            by_folder.setdefault(str(Path(FOLDER, place).parent), []).append(name)
    for folder, names in by_folder.items():
        lines.append(f"COPY --chown=0:0 --chmod=0444 {json.dumps([*names, f'{folder}/'])}")
    if not target.file:
        lines.append(f"# {target.pipeline.partition(':')[0]} is a module: the base image has to have it installed.")
    lines.append(f"# The Plan is not in it: it comes as /plan/{PLAN}, so that another Plan needs no other image.")
    return "\n".join([*lines, "USER 10001:10001", ""])
