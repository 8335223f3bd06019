"""How to look at what was rejected or dead-lettered, and how to have it tried again."""

from __future__ import annotations

from headrace.base.formatting import quote_arg


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
