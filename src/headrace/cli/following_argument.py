"""`--follow`: the running pipeline takes up another model whenever the file of `--plan` changes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import SettingsError

if TYPE_CHECKING:
    from headrace.pipeline.following import Following

#: Options each of which chooses the models of a run, or runs beside them.
_BESIDE = ("follow", "shadow", "canary")


def add_follow_argument(parser: argparse.ArgumentParser) -> None:
    """Declare it."""
    parser.add_argument("--follow", action="store_true", help="change the model whenever the file of --plan changes")


def read_followed(args: argparse.Namespace) -> str | None:
    """Return what stands in the file; to be called before the Plan is read: what changes after that is taken up later."""
    return Path(args.plan).read_text() if args.follow and args.plan and Path(args.plan).is_file() else None


def make_following(args: argparse.Namespace, text: str | None, say: Callable[[object], None]) -> Following | None:
    """Return what is followed; None without `--follow`.

    Args:
        args: As parsed.
        text: What `read_followed` returned.
        say: Told of each switch and each refusal.

    Raises:
        SettingsError: If there is no file to follow, or something else would choose the models, too.
    """
    given = [f"--{option}" for option in _BESIDE if getattr(args, option, None)]
    if len(given) > 1:
        raise SettingsError(f"{' and '.join(given)} each choose the models or run beside them; give one of them")
    if not args.follow:
        return None
    from headrace.pipeline.following import Following
    from headrace.validate.switching import explain_no_switch

    if not args.plan:
        raise SettingsError("--follow goes with --plan FILE: that file is followed")
    return Following(file=Path(args.plan), judge=explain_no_switch, text=text, settings=args.settings, say=say)
