"""What is to be deployed: which pipeline, under which Plan, how often, and where it gets its settings."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from headrace.base.errors import SettingsError
from headrace.base.network_rules import NetworkPlan
from headrace.base.plan import Plan
from headrace.base.redaction import hide_secrets_in_text
from headrace.base.settings import check
from headrace.deploy.need import Need

#: A supervisor kills what is still there so long after `run.grace_seconds`; and what is left to say goodbye.
_KILL_SECONDS, _MARGIN_SECONDS = 10, 5
#: A service sends its clients elsewhere for so long before it drains.
_LEAVE_SECONDS = 5
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?")
_IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,254}")
_WORD = re.compile(r"[A-Za-z0-9_.:/@%+=,-]+")
METRICS_PORT, HTTP_PORT = 9000, 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A pipeline to deploy."""

    pipeline: str
    """`jobs.py:pipeline` or `package.module:attribute`."""
    name: str
    """Of the unit, the Deployment and all else: a DNS label."""
    plan: Plan = field(default_factory=Plan)
    has_plan: bool = False
    is_service: bool = False
    """`headrace serve`; else `headrace run` on a queue."""
    supervise: int = 1
    """Worker processes of one machine or pod."""
    image: str = "headrace"
    least: int = 1
    most: int = 10
    """Pods."""
    prometheus: str = "http://prometheus-operated.monitoring.svc:9090"
    """Where KEDA asks."""
    job: str = "headrace"
    """Prometheus's name of the scrape job."""
    program: str = "/opt/headrace/bin/headrace"
    """On a machine with systemd."""
    include: tuple[str, ...] = ()
    """Files that the pipeline needs beside its own."""
    allow: tuple[str, ...] = ()
    """Private networks that jobs may name."""
    need: Need | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        module, colon, attribute = self.pipeline.partition(":")
        is_one = (
            bool(colon) and attribute.isidentifier() and bool(_WORD.fullmatch(module)) and not module.startswith("-")
        )
        check(is_one, "the pipeline", self.pipeline, "FILE.py:ATTRIBUTE or MODULE:ATTRIBUTE, without spaces")
        check(
            bool(_NAME.fullmatch(self.name)),
            "--name",
            self.name,
            "at most 50 small letters, digits and -, such as photos-night",
        )
        check(
            bool(_IMAGE.fullmatch(self.image)), "--image", self.image, "an image such as registry.example.com/photos:3"
        )
        check(1 <= self.supervise <= 256, "--supervise", self.supervise, "1 to 256")
        # KEDA asks what the pods themselves say, so from none of them no other would ever come.
        is_range = 1 <= self.least <= self.most <= 10_000
        check(is_range, "--replicas", f"{self.least},{self.most}", "LEAST,MOST from 1 to 10000")
        for name, value in (("--program", self.program), ("--prometheus", self.prometheus), ("--job", self.job)):
            check(bool(_WORD.fullmatch(value)), name, value, "a word without spaces")
        for value in (*self.include, *self.allow):
            check(bool(_WORD.fullmatch(value)) and not value.startswith("-"), "--include, --allow", value, "a word")
        check(self.program.startswith("/"), "--program", self.program, "a whole path, as systemd needs it")
        try:
            NetworkPlan(allow=list(self.allow))
        except SettingsError as error:
            raise SettingsError(f"--allow: {error}") from None
        if len(set(self.places.values())) < len(self.places):
            raise SettingsError(
                "--include: two files would have one name in the image; keep them below the pipeline's folder"
            )
        if "..." in hide_secrets_in_text(self.prometheus) or "@" in self.prometheus:
            raise SettingsError("--prometheus: a password does not belong here; give KEDA a TriggerAuthentication")
        text = self.plan.as_toml()
        if hide_secrets_in_text(text) != text:
            raise SettingsError(
                "the Plan seems to hold a secret; Plans are stored with every run: take it out of the Plan"
            )

    @property
    def file(self) -> str:
        """The pipeline's own file; empty where it is a module of an installed package."""
        module = self.pipeline.partition(":")[0]
        return module if module.endswith(".py") else ""

    def pipeline_in(self, folder: str) -> str:
        """Return the pipeline as it is called where its file lies in a folder."""
        module, _, attribute = self.pipeline.partition(":")
        return f"{folder}/{Path(module).name}:{attribute}" if self.file else self.pipeline

    @property
    def places(self) -> dict[str, str]:
        """{file: where it is in the pipeline's folder there}: as it is here below the pipeline's own file, or by its name."""
        names = dict.fromkeys([*([self.file] if self.file else []), *self.include])
        here = Path(self.file).parent
        return {name: str(_below(Path(os.path.normpath(name)), here)) for name in names}

    @property
    def stop_seconds(self) -> int:
        """How long a stop may take before what is left is killed: the Plan's grace, and what comes after it."""
        leave = _LEAVE_SECONDS if self.is_service else 0
        return math.ceil(self.plan.run.grace_seconds) + leave + _KILL_SECONDS + _MARGIN_SECONDS


def _below(path: Path, folder: Path) -> Path:
    if path.is_relative_to(folder) and not path.is_absolute() and ".." not in path.parts:
        return path.relative_to(folder)
    return Path(path.name)


def name_of(pipeline: str) -> str:
    """Return a name for a pipeline: `photos-night` for `jobs/photos_night.py:pipeline`."""
    module = Path(pipeline.partition(":")[0].removesuffix(".py")).name.rpartition(".")[2]
    name = re.sub("[^a-z0-9]+", "-", module.lower()).strip("-")[:50].rstrip("-")
    return name if _NAME.fullmatch(name) else f"pipeline-{name}"[:50].rstrip("-")
