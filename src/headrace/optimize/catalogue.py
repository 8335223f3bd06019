"""Every technique, in the order in which a search tries them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.optimize.gpu import GPU
from headrace.optimize.half import FP16
from headrace.optimize.recipe import PRUNE_SHARES
from headrace.optimize.smaller import of_other, of_size
from headrace.optimize.techniques import AS_GIVEN, LADDER, REPAIRS, Technique, installed_engines
from headrace.optimize.trained import QAT, TRAINED
from headrace.optimize.unconverted import UNCONVERTED
from headrace.runs.formats.variants import ValidationDocument
from headrace.validate.variants import validate_variants


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """What a search tries, and with what it tests: techniques by when they are tried; smaller models come from the goal."""

    of_the_file: tuple[Technique, ...] = (*LADDER, FP16, *GPU)
    """Tried on the model as given."""
    of_the_network: tuple[Technique, ...] = UNCONVERTED
    """Tried with a recipe, after those."""
    repairs: tuple[Technique, ...] = REPAIRS
    """Tried in this order where int8 is wrong; the first that is accepted ends them."""
    qat: Technique = QAT
    """Tried where no repair keeps int8's full speed."""
    trained: tuple[Technique, ...] = TRAINED
    """Tried last, in this order."""
    prune_shares: tuple[float, ...] = PRUNE_SHARES
    """Of each layer's channels, gone after each round of pruning."""
    max_untrained: int = 8
    """Candidates that nothing is trained for that may be tested on the golden set."""
    installed_engines: Callable[[], tuple[str, ...]] = installed_engines
    """What model files can be opened with here."""
    evaluate: Callable[..., ValidationDocument] = validate_variants
    """Runs the gates of the golden set, as `validate_variants`."""


METHODS = Methods()
#: Those that a user's list makes stand for one size, and for one other model.
TECHNIQUES: tuple[Technique, ...] = (
    AS_GIVEN, *LADDER, FP16, *GPU, of_size(160), of_other(Path("NAME.onnx")), *UNCONVERTED, *REPAIRS, QAT, *TRAINED,
)  # fmt: skip
