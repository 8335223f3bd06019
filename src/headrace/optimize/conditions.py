"""What candidates of a search are judged under: the same for all of them, and written down with each."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.optimize.goal import Goal
from headrace.optimize.techniques import Subject, find_deciding_versions
from headrace.optimize.unconverted import network_code
from headrace.runs.formats.optimization import Artifact, Asked, Attempt
from headrace.runs.formats.variants import ValidationDocument
from headrace.runs.hardware import find_hardware, find_versions, machine_in_words
from headrace.validate.golden import Golden, spread
from headrace.validate.policy import MAX_SLICE_DROP, Policy
from headrace.validate.variant_spec import VariantSpec, variant_settings
from headrace.validate.variants import PARITY_ITEMS

#: Probability that a search accepts any that is worse by more than the margin, at most.
ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Model, goal, sets and machine of a search."""

    subject: Subject
    goal: Goal
    golden: Golden | None = None
    """Decides; None: nothing can be accepted but the model as given."""
    hardware: str = ""
    """Fingerprint of this machine."""

    def key(self, artifact: Artifact, spec: VariantSpec) -> str:
        """Return the hash of everything that decides the outcome of a candidate: the same is not tried twice."""
        subject, goal, model = self.subject, self.goal, spec.model
        return hash_of([
            subject.original.sha256, artifact.sha256, model.engine, model.threads, dict(model.options),
            goal.batch, goal.max_drop, goal.threads, goal.objective, self.hardware,
            *(() if model.input_side is None else (model.input_side,)),
            subject.calibration.sha256 if subject.calibration else "",
            self.golden.sha256 if self.golden else "",
            find_deciding_versions(model.engine), *network_code(model),
            *(() if goal.metric.is_default else (goal.metric.name, goal.metric.source)),
            *(("robustness",) if goal.robustness else ()),
            *((goal.max_slice_drop,) if goal.max_slice_drop != MAX_SLICE_DROP else ()),
            *(subject.incumbent.decides if subject.incumbent else ()),
        ])  # fmt: skip

    def policy(self, kind: str, alpha: float = ALPHA) -> Policy:
        """Return what the gates ask of a candidate of this kind of technique."""
        goal = self.goal
        return Policy(
            max_drop=goal.max_drop, max_slice_drop=goal.max_slice_drop, metric=goal.metric, robustness=goal.robustness,
            batch=goal.batch, alpha=alpha, retrained=kind == "trained", output=goal.output,
        )  # fmt: skip

    def record(self, alpha: float = 0.0) -> Asked:
        """Return what an attempt was judged by, so that it can be done again.

        Args:
            alpha: Level of its test on the golden set; 0: there was none.
        """
        goal, calibration, golden, used = self.goal, self.subject.calibration, self.golden, self.subject.incumbent
        return Asked(
            max_drop=goal.max_drop, max_slice_drop=goal.max_slice_drop, alpha=alpha, metric=goal.metric.name,
            robustness=goal.robustness, pipeline=goal.pipeline,
            data=calibration.name if calibration else "", data_sha256=calibration.sha256 if calibration else "",
            golden=golden.name if golden else "", golden_sha256=golden.sha256 if golden else "",
            versions=find_versions(), machine=machine_in_words(find_hardware()),
            against={**variant_settings(used.spec.model), "sha256": used.artifact.sha256} if used else {},
        )  # fmt: skip

    def attempt(
        self,
        spec: VariantSpec,
        artifact: Artifact,
        document: ValidationDocument,
        began: float,
        *,
        alpha: float = 0.0,
        **outcome: Any,
    ) -> Attempt:
        """Return an attempt with its outcome, and with what it was judged under.

        Args:
            spec: The candidate.
            artifact: Its file.
            document: What the gates said.
            began: When making and judging it did, on the monotonic clock.
            alpha: As `record` takes it.
            outcome: The other fields of `Attempt`.
        """
        return Attempt(
            created_unix_seconds=time.time(), model=self.subject.original.sha256, candidate=spec.text,
            settings=variant_settings(spec.model), artifact=artifact, seconds=time.monotonic() - began,
            validation=document, hardware=self.hardware, asked=self.record(alpha), **outcome,
        )  # fmt: skip

    def find_unlabelled_items(self) -> Golden | None:
        """Return the items on which candidates are compared before their test on the golden set; their labels are not used.

        With labels a large difference would only be a note: the accuracy is not evaluated here, so it must be small.
        """
        given = self.subject.calibration or self.golden
        return None if given is None else given.drop_labels(spread(len(given), PARITY_ITEMS))

    def is_as_given(self, attempt: Attempt) -> bool:
        """Return whether it is the model as given: answers are compared with its own, so it needs no test."""
        return attempt.candidate == self.subject.baseline().text

    def is_smaller(self, artifact: Artifact) -> bool:
        """Return whether a file is smaller than the one in use."""
        return artifact.num_bytes < self.subject.file_in_use.num_bytes

    def is_worth_testing(self, attempt: Attempt) -> bool:
        """Return whether an attempt may be accepted by a test on the golden set, and surely gains something."""
        if attempt.verdict != "inconclusive" or attempt.is_recalled:
            return False
        if self.golden is None and not self.is_as_given(attempt):
            return False
        return self.goal.is_gain(attempt, is_smaller=self.is_smaller(attempt.artifact))


def hash_of(decides: list[Any]) -> str:
    """Return the key of what decides an outcome."""
    return hashlib.sha256(msgspec.json.encode(decides, order="sorted")).hexdigest()[:16]
