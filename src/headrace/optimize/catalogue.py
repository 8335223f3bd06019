"""Every technique, in the order in which the search tries them."""

from __future__ import annotations

from pathlib import Path

from headrace.optimize.gpu import GPU
from headrace.optimize.half import FP16
from headrace.optimize.incumbent import AS_GIVEN
from headrace.optimize.smaller import of_other, of_size
from headrace.optimize.techniques import LADDER, REPAIRS, Technique
from headrace.optimize.trained import QAT, TRAINED
from headrace.optimize.unconverted import UNCONVERTED

#: Those that a user's list makes stand for one size, and for one other model.
TECHNIQUES: tuple[Technique, ...] = (
    AS_GIVEN, *LADDER, FP16, *GPU, of_size(160), of_other(Path("NAME.onnx")), *UNCONVERTED, *REPAIRS, QAT, *TRAINED,
)  # fmt: skip
