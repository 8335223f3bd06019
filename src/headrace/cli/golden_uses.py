"""Counts the uses of a golden set: a variant that passes after many tries may have passed by luck."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.base.errors import LedgerError
from headrace.base.formatting import pluralize

if TYPE_CHECKING:
    from headrace.ledger.ledger import Ledger
    from headrace.runs.formats.variants import ValidationDocument

Count = Callable[["ValidationDocument"], None]


@contextlib.contextmanager
def count_uses(given: str | None, say: Callable[[str], object]) -> Iterator[Count]:
    """Give a function that writes a validation down where its golden set judged.

    The ledger that was named is made if it is missing; the default one is used where it exists, so that looking at two files
    leaves nothing behind.

    Args:
        given: The ledger's file as the user gave it; None: the default one.
        say: Told how often the set has judged, or why it is not counted.

    Raises:
        LedgerError: If the ledger that was named cannot be used; of the default one it is told.
    """
    from headrace.ledger.ledger import Ledger, ledger_path

    path = ledger_path(given)
    if given is None and not path.exists():
        yield lambda document: None
        return
    with contextlib.ExitStack() as stack:
        try:
            ledger = stack.enter_context(Ledger(path))
        except LedgerError as error:
            if given is not None:
                raise
            say(f"not counted: {error}")
            yield lambda document: None
            return
        yield lambda document: _count(ledger, document, say)


def _count(ledger: Ledger, document: ValidationDocument, say: Callable[[str], object]) -> None:
    from headrace.ledger.ledger import hardware_fingerprint
    from headrace.runs.formats.events import Event
    from headrace.runs.hardware import find_hardware

    judged = any(gate.name in ("accuracy", "robustness") and gate.outcome != "skipped" for gate in document.gates)
    if not judged:
        return
    ledger.events.write(
        Event(
            kind="validation", verdict=document.verdict, golden_sha256=document.golden_sha256,
            says=f"{document.a.name} against {document.b.name}: {document.says}",
            model=str(document.a.variant.get("sha256", "")),
            hardware=hardware_fingerprint(find_hardware()),
        )
    )  # fmt: skip
    uses = ledger.attempts.golden_uses(document.golden_sha256)
    say(f"{document.golden} has judged {pluralize(uses, 'time')}, by {ledger.path}")
