"""Does an attempt of the ledger again: the same files, data and settings, and whether it comes out the same.

What is measured again is the judgement of the very file that was judged then, not the making of it. Machine and versions are
those of today: what is otherwise is named, and never a reason not to look.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from headrace.base.errors import EngineError, LedgerError
from headrace.base.plan import ModelPlan
from headrace.engines import engine_for
from headrace.engines.model_files import model_files
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.cheap_gates import run_cheap_gates
from headrace.optimize.concurrency import Concurrency, compare_concurrency
from headrace.optimize.concurrency_attempt import TECHNIQUE as CONCURRENCY
from headrace.optimize.techniques import REFUTED
from headrace.runs.formats.events import Event
from headrace.runs.formats.ledger import Replayed
from headrace.runs.formats.optimization import SHADOW, Artifact, Asked, Attempt
from headrace.runs.formats.profile import Estimate
from headrace.runs.formats.variants import GateName
from headrace.runs.hardware import find_hardware, find_versions, machine_in_words
from headrace.validate.golden import Golden, spread
from headrace.validate.metrics import Metric
from headrace.validate.model_speed import as_estimate
from headrace.validate.policy import Policy
from headrace.validate.variant_spec import VariantSpec, variant_text
from headrace.validate.variants import CHEAP_GATES, PARITY_ITEMS, validate_variants

Read = Callable[[str, str, bool], Golden | None]
"""(path, pipeline, whether labels are needed) -> the set; None for an empty path."""


def replay_attempt(
    attempt: Attempt, *, store: Path, read: Read, metric: Callable[[str], Metric], hardware: str
) -> Replayed:
    """Return what comes of an attempt today.

    Args:
        attempt: As the ledger holds it.
        store: Folder of the model files.
        read: Reads a set of items.
        metric: Finds a metric by its name.
        hardware: Fingerprint of this machine.

    Raises:
        LedgerError: If a file or a set is gone or is another one, the attempt does not say what it was judged by, or no gate
            judged it.
    """
    if attempt.technique == SHADOW:
        raise LedgerError(
            f"{attempt.id} ran beside live traffic, which does not come again: run it anew with headrace run --shadow "
            f"{attempt.candidate}"
        )
    if attempt.asked is None:
        raise LedgerError(
            f"{attempt.id} was written before attempts kept what they were judged by; try it anew: headrace optimize"
        )
    if REFUTED in attempt.artifact.parameters:
        raise LedgerError(
            f"{attempt.id} was turned down by the recipe's own data before any gate was asked, so there is nothing to ask "
            "again; change the recipe, and try it anew: headrace optimize"
        )
    began, asked = time.monotonic(), attempt.asked
    artifact, original = _file(attempt.artifact, store), _original(attempt, store)
    calibration = _set(read, asked.data, asked.data_sha256, asked, labelled=False)
    golden = _set(read, asked.golden, asked.golden_sha256, asked, labelled=True)
    candidate = VariantSpec(attempt.candidate, ModelPlan(**{**attempt.settings, "artifact": str(artifact)}))
    given = _baseline(original, attempt)
    baseline = VariantSpec(variant_text(given), given)
    if attempt.technique == CONCURRENCY:
        verdict, speedup, drop = _concurrency(attempt, candidate, calibration or golden)
    else:
        verdict, speedup, drop = _judge(attempt, asked, baseline, candidate, calibration, golden, metric)
    return _compare(attempt, verdict, speedup, drop, hardware, time.monotonic() - began)


def as_event(attempt: Attempt, found: Replayed, hardware: str) -> Event:
    """Return a replay as the ledger keeps it: it is no attempt of its own, for it must not be recalled by a search.

    Args:
        attempt: That was judged again.
        found: What came of it.
        hardware: Fingerprint of this machine.
    """
    return Event(
        kind="replay", attempt=attempt.id, model=attempt.model, technique=attempt.technique, verdict=found.verdict,
        says=found.says, golden_sha256=attempt.validation.golden_sha256 if found.drop is not None else "",
        hardware=hardware, speedup=found.speedup, drop=found.drop,
    )  # fmt: skip


def _judge(
    attempt: Attempt,
    asked: Asked,
    a: VariantSpec,
    b: VariantSpec,
    calibration: Golden | None,
    golden: Golden | None,
    metric: Callable[[str], Metric],
) -> tuple[str, Estimate | None, Estimate | None]:
    """Ask the gates that were asked then."""
    policy = Policy(
        max_drop=asked.max_drop, max_slice_drop=asked.max_slice_drop, alpha=asked.alpha,
        batch=attempt.validation.batch, metric=metric(asked.metric),
        robustness=asked.robustness, retrained=attempt.kind == "trained",
    )  # fmt: skip
    names = {gate.name for gate in attempt.validation.gates}
    given = calibration or golden
    some = None if given is None else given.drop_labels(spread(len(given), PARITY_ITEMS))
    used = ModelPlan(**asked.against)
    against = VariantSpec(variant_text(used), used) if asked.against else a
    cheap = run_cheap_gates(a, against, b, some, policy, [gate for gate in CHEAP_GATES if gate in names])
    dear: tuple[GateName, ...] = ("static", "accuracy", "robustness")
    judged = None
    if names & {"accuracy", "robustness"} and cheap.verdict != "reject":
        judged = validate_variants(a, b, golden, policy, gates=dear)
    if cheap.interrupted or (judged and judged.interrupted):
        raise KeyboardInterrupt
    speedup = cheap.interval("speed", "low", "ratio", "high")
    if cheap.verdict == "reject":
        return "reject", speedup, None
    drop = judged.interval("accuracy", "low", "drop", "high") if judged else None
    if judged is not None:
        return judged.verdict, speedup, drop
    # Turned down then for its speed alone, by a rule of the search: intervals tell whether it is as slow.
    return attempt.verdict, speedup, drop


def _concurrency(
    attempt: Attempt, spec: VariantSpec, items: Golden | None
) -> tuple[str, Estimate | None, Estimate | None]:
    first = attempt.layouts[0]
    taken = next(one for one in reversed(attempt.layouts) if one.chosen)
    if items is None or taken is first:
        return attempt.verdict, None, None
    settings = [Concurrency(workers=one.workers, threads=one.threads, batch=one.batch) for one in (first, taken)]
    found = compare_concurrency((spec, settings[0]), (spec, settings[1]), items.scale_to(spec.model.input_side))
    if found is None:
        return attempt.verdict, None, None
    return ("accept" if found.low > 1 else "reject"), as_estimate(found), None


def _compare(
    attempt: Attempt, verdict: str, speedup: Estimate | None, drop: Estimate | None, hardware: str, seconds: float
) -> Replayed:
    differences = [f"the verdict is {verdict}, and was {attempt.verdict}"] if verdict != attempt.verdict else []
    for name, before, now in (("speed-up", attempt.speedup, speedup), ("drop", attempt.drop, drop)):
        if before is None or now is None:
            continue
        if before.high < now.low or now.high < before.low:
            differences.append(
                f"the {name} is {now.mid:.3g} ({now.low:.3g} to {now.high:.3g}), and was {before.mid:.3g} ({before.low:.3g} to "
                f"{before.high:.3g})"
            )
    drift = tuple(_drift(attempt, hardware))
    said = "; ".join(differences) or "it came out the same within its intervals"
    return Replayed(
        attempt=attempt.id, is_same=not differences, differences=tuple(differences), drift=drift, verdict=verdict,
        speedup=speedup, drop=drop, seconds=seconds,
        says=f"{attempt.id}: {said}" + (f"; otherwise than then: {', '.join(drift)}" if drift else ""),
    )  # fmt: skip


def _drift(attempt: Attempt, hardware: str) -> list[str]:
    found = [] if attempt.hardware == hardware else [_machine_then(attempt)]
    before, now = attempt.asked.versions if attempt.asked else {}, find_versions()
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return [*found, *(f"{name} {now.get(name, 'is gone')}, was {before.get(name, 'not there')}" for name in changed)]


def _machine_then(attempt: Attempt) -> str:
    then = attempt.asked.machine if attempt.asked else ""
    if not then:
        return "the machine, or how it is told apart: the attempt was written before processors were told by family and flags"
    return f"the machine is {machine_in_words(find_hardware())}, was {then}"


def _file(artifact: Artifact, store: Path) -> Path:
    """Return a model file that is still what it was, wherever the store is now."""
    places = [store / artifact.sha256[:16] / Path(artifact.file).name, Path(artifact.file)]
    place = next((one for one in places if one.is_file()), None)
    if place is None:
        raise LedgerError(f"the model file {artifact.file} is gone: nothing can be done again with it")
    if not _is_still(place, artifact):
        raise LedgerError(f"the model file {place} is another one now; expected SHA-256 {artifact.sha256[:16]}...")
    return place


def _is_still(place: Path, artifact: Artifact) -> bool:
    try:
        return model_files(place).sha256() == artifact.sha256
    except EngineError:  # it is no model any more, or not whole
        return False


def _original(attempt: Attempt, store: Path) -> Path:
    """Return the model as it was given, by its hash."""
    kept = ArtifactStore(store).find(attempt.model)
    if kept is None:
        raise LedgerError(f"the model as it was given ({attempt.model[:16]}...) is not in {store} any more")
    return _file(kept, store)


def _baseline(original: Path, attempt: Attempt) -> ModelPlan:
    is_side = attempt.asked is None or not attempt.asked.against
    settings = attempt.validation.a.variant if is_side else attempt.settings
    return ModelPlan(artifact=str(original), engine=engine_for(original), threads=int(settings.get("threads") or 1))


def _set(read: Read, path: str, sha256: str, asked: Asked, *, labelled: bool) -> Golden | None:
    found = read(path, asked.pipeline, labelled)
    if found is not None and found.sha256 != sha256:
        raise LedgerError(
            f"{path} is another set now than when this was tried (SHA-256 {found.sha256[:12]}..., was {sha256[:12]}...): what "
            "it says would be no replay"
        )
    return found
