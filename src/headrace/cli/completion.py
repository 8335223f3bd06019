"""Print a shell script that completes headrace's commands, options, choices and settings of a Plan.

    eval "$(headrace completion bash)"      in ~/.bashrc
    eval "$(headrace completion zsh)"       in ~/.zshrc, after compinit

The script lists the present commands and starts no Python when it completes: print it again after an update, or let the shell
do that at each start, as above. The shell itself completes names of files.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from headrace.cli.terminal import write

SHELLS = ("bash", "zsh")
#: Stages that most pipelines have.
_STAGES = ("fetch", "decode", "preprocess", "process", "deliver")

_SCRIPT = """\
_headrace() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" path="" words="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path/${{COMP_WORDS[i]}}" in
            {places}) path="$path/${{COMP_WORDS[i]}}" ;;
        esac
    done
    COMPREPLY=()
    case "$path $before" in
        *" --set") words="{settings}"; compopt -o nospace 2>/dev/null ;;
{values}
        *)
            case "$path ${{word:0:1}}" in
{words}
            esac ;;
    esac
    case "$words" in *://*) [ -n "$word" ] || words="" ;; esac  # an address that has begun; until then files
    [ -z "$words" ] || COMPREPLY=($(compgen -W "$words" -- "$word"))
    case "${{COMPREPLY[*]}}" in *://) compopt -o nospace 2>/dev/null ;; esac
}}
complete -o default -F _headrace headrace"""


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """What may follow a command, or an action of it."""

    path: str
    """`` for headrace itself, `/run`, `/queue/peek`."""
    options: Sequence[str]
    values: Mapping[str, Sequence[str]]
    """{option that takes a value: its choices; none where the shell completes a file's name}."""
    words: Sequence[str]
    """Actions, or choices of an argument."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads it")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from headrace.cli import COMMANDS, EXIT_DONE, make_parser

    if args.shell == "zsh":
        write("autoload -U +X bashcompinit && bashcompinit")
    write(_script(list(_places(make_parser(list(COMMANDS)), ""))))
    return EXIT_DONE


def _places(parser: argparse.ArgumentParser, path: str) -> Iterator[_Place]:
    """Give a parser's place and those of its actions."""
    options: list[str] = []
    values: dict[str, Sequence[str]] = {}
    words: list[str] = []
    below: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of what was declared
        options += action.option_strings
        choices = [str(choice) for choice in action.choices or ()] or _schemes(str(action.metavar))
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            below = action.choices
        if not action.option_strings:
            words += choices
        elif action.nargs != 0:
            values.update(dict.fromkeys(action.option_strings, choices))
    yield _Place(path, options, values, words)
    for name, one in below.items():
        yield from _places(one, f"{path}/{name}")


def _schemes(metavar: str) -> list[str]:
    """Return what an address begins with, for an argument that takes one."""
    from headrace.sources.addresses import QUEUES, SOURCES

    queues = QUEUES.names() if "QUEUE" in metavar else []
    sources = [name for name in SOURCES.names() if name[0] != "."] if metavar == "QUEUE|PATH" else []
    return [f"{name}://" for name in (*queues, *sources)]


def _script(places: Sequence[_Place]) -> str:
    values: dict[str, list[str]] = {}
    for place in places:
        for option, choices in place.values.items():
            if option != "--set":
                values.setdefault(" ".join(choices), []).append(f'"{place.path} {option}"')
    words = [
        line
        for place in places
        for line in (
            f'                "{place.path} -") words="{" ".join(place.options)}" ;;',
            *([f'                "{place.path} "*) words="{" ".join(place.words)}" ;;'] if place.words else []),
        )
    ]
    return _SCRIPT.format(
        places="|".join(f'"{place.path}"' for place in places if place.path),
        settings=" ".join(_settings()),
        values="\n".join(f'        {"|".join(where)}) words="{choices}" ;;' for choices, where in values.items()),
        words="\n".join(words),
    )


def _settings() -> Iterator[str]:
    """Give what `--set` takes: `fetch.workers=`, `model.engine=`."""
    from headrace.base import plan
    from headrace.base.network_rules import NetworkPlan

    tables = {
        **dict.fromkeys(_STAGES, plan.StagePlan),
        "decode": plan.DecodePlan, "model": plan.ModelPlan, "source": plan.SourcePlan, "run": plan.RunPlan,
        "network": NetworkPlan,
    }  # fmt: skip
    for name in _STAGES:
        yield from (f"{name}.{field.name}=" for field in dataclasses.fields(plan.StagePlan))
    for name, table in tables.items():
        if table is not plan.StagePlan:
            yield from (f"{name}.{field.name}=" for field in dataclasses.fields(table))
