"""How answers of live traffic are compared, settled by the first ones that come."""

from __future__ import annotations

from typing import Any

from headrace.base.meaning import Declared
from headrace.validate.agreement import Agreement, explain_unknown, make_namer
from headrace.validate.meaning_choice import class_names, meaning_of
from headrace.validate.meanings import Numbers


def begin_agreement(answers: Any, declared: Declared) -> tuple[Agreement, str]:
    """Return what compares answers, and why their meaning is not known; empty if it is.

    What is declared wrongly is no failure of a candidate: then numbers are compared.

    Args:
        answers: Of the model in use, to one batch.
        declared: What is known of them.
    """
    wrong = ""
    try:
        meaning = meaning_of([answers], declared)
    except ValueError as error:
        wrong = f"the answers are not what the module's output declares: {error}"
        meaning = meaning_of([answers], Declared(Numbers(is_known=False)))
    unknown = wrong or ("" if meaning.is_known else explain_unknown(answers))
    return Agreement(meaning, make_namer(class_names(declared.metadata))), unknown
