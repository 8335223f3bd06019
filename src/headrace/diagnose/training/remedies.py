"""What the remedies of a finding would buy, by the simulator of trainings."""

from __future__ import annotations

import msgspec

from headrace.base.errors import SettingsError
from headrace.diagnose.replay.demands import CannotReplay
from headrace.diagnose.training.cost import WORTH_WORK
from headrace.diagnose.training.simulation_whatif import TrainingReplay
from headrace.runs.formats.diagnosis import Finding
from headrace.runs.formats.prediction import Change
from headrace.runs.formats.profile import Estimate
from headrace.runs.reader import Run

#: A remedy that is predicted to buy less is not proposed.
PAYS = 1.02
#: One that buys less than this is proposed only if it surely costs nothing.
_PAYS_WELL = 1.0 + WORTH_WORK


def predict_remedies(run: Run, finding: Finding) -> Finding:
    """Return a finding whose remedies say what they are predicted to buy, where they name settings.

    A run that cannot be simulated leaves them without a figure.

    Args:
        run: Of the training.
        finding: Its remedies' `settings` are those of `headrace whatif --set`.
    """
    if not any(remedy.settings for remedy in finding.remedies):
        return finding
    try:
        replay = TrainingReplay(run)
    except CannotReplay:
        return finding
    remedies = []
    for remedy in finding.remedies:
        ratio = remedy.ratio
        if remedy.settings:
            try:
                ratio = replay.predict(Change(settings=remedy.settings)).throughput.ratio
            except (CannotReplay, SettingsError):
                ratio = None  # what the run cannot tell is not predicted; `headrace whatif` says why
        remedies.append(msgspec.structs.replace(remedy, ratio=ratio))
    useful = [one for one in remedies if one.ratio is None or _pays(one.ratio)]
    if not useful:
        useful = [
            msgspec.structs.replace(remedies[0], says=f"predicted not to pay, so rather leave it: {remedies[0].says}")
        ]
    return msgspec.structs.replace(finding, remedies=tuple(useful))


def _pays(ratio: Estimate) -> bool:
    return ratio.mid >= _PAYS_WELL or (ratio.mid >= PAYS and ratio.low >= 1.0)
