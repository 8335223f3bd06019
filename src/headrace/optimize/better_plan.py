"""The Plan that uses what a search found, with the reason of each setting."""

from __future__ import annotations

import dataclasses

from headrace.base.plan import ModelPlan, Plan, StagePlan
from headrace.runs.formats.optimization import Attempt, OptimizationDocument


def proof_of(document: OptimizationDocument) -> Attempt:
    """Return the attempt that a decision rests on: the variant's, or the concurrency's where the model stays as it is.

    Raises:
        ValueError: If nothing was proved.
    """
    proof = find_recommended(document) or find_accepted_concurrency(document)
    if proof is None:
        raise ValueError("nothing was proved, so there is nothing to accept")
    return proof


def find_recommended(document: OptimizationDocument) -> Attempt | None:
    """Return the attempt whose variant is recommended."""
    return next((one for one in document.attempts if one.candidate == document.recommended), None)


def find_accepted_concurrency(document: OptimizationDocument) -> Attempt | None:
    """Return the concurrency that was found and proved."""
    return document.layout if document.layout is not None and document.layout.verdict == "accept" else None


def better_plan(plan: Plan, document: OptimizationDocument, stage: str, key: str = "") -> tuple[Plan, dict[str, str]]:
    """Return a Plan that uses the recommended variant and concurrency, and {path of a setting: why it was changed}.

    Args:
        plan: The one that is changed.
        document: A search that proved something.
        stage: The device stage that runs the model.
        key: Of its table, `[models.KEY]`; empty: `[model]`.

    Raises:
        ValueError: If nothing was proved.
    """
    variant, concurrency = find_recommended(document), find_accepted_concurrency(document)
    chosen = concurrency or proof_of(document)
    used = plan.models.get(key, plan.model)
    # How many calls run side by side, and beside whose, is no part of a variant; workers are told below where they were sought.
    instances = None if concurrency is not None else used.instances
    changed = plan.with_model(key, ModelPlan(**{**chosen.settings, "uses": used.uses, "instances": instances}))
    reasons = {}
    if variant is not None:
        reasons[f"models.{key}.artifact" if key else "model.artifact"] = f"{variant.technique}: {variant.hypothesis}"
    if concurrency is not None:
        before = plan.stages.get(stage, StagePlan())
        after = dataclasses.replace(before, workers=concurrency.stages["workers"], batch=concurrency.stages["batch"])
        changed = dataclasses.replace(changed, stages={**plan.stages, stage: after})
        speedup = concurrency.speedup
        if speedup is not None:
            reasons[f"stages.{stage}.workers"] = (
                f"layout: {speedup.mid:.2f} times ({speedup.low:.2f} to {speedup.high:.2f}) the items per "
                "second, with threads and batch"
            )
    return changed, reasons
