"""How to look at what was rejected or dead-lettered, and how to have it tried again; and what was never let in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from headrace.base.formatting import quote_arg

_REFUSED = "refused."


def where_refused(address: str | None, errors: str | None) -> list[str]:
    """Return the commands for people, a line each.

    Args:
        address: Of the queue; None or empty: there is none, or nobody knows it.
        errors: The file that has a line for each job; None: no run folder was asked for.
    """
    if address:
        shown = quote_arg(address)
        return [
            f"look at them:    headrace queue peek {shown} --dead",
            f"try them again:  headrace queue redrive {shown}",
        ]
    return [f"each has a line in {errors}" if errors else "with -o RUN each has a line in RUN/errors.jsonl"]


def say_never_let_in(notes: Iterable[Mapping[str, int]]) -> list[str]:
    """Return the line on requests that a service refused before they became jobs; none if it refused none.

    Args:
        notes: Of each run, such as {"refused.serve.busy": 7}.
    """
    by_code: Counter[str] = Counter()
    for of_run in notes:
        by_code.update({name.removeprefix(_REFUSED): num for name, num in of_run.items() if name.startswith(_REFUSED)})
    if not by_code:
        return []
    return [f"requests refused: {', '.join(f'{number:,} {code}' for code, number in by_code.most_common())}"]
