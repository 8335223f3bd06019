"""The options that describe a change of a recorded run, shared by the commands that predict, and the Change they make."""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.base.errors import RunFolderError, SettingsError

if TYPE_CHECKING:
    from headrace.base.plan import Plan
    from headrace.runs.formats.prediction import Change
    from headrace.runs.run_folder import StageInfo

#: What receivers do may be sped up like a stage.
_RECEIVING = "receiving"
#: More scenarios of one call are a slip of the hand: each takes seconds.
MOST_SCENARIOS = 64


def add_change_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that describe a change."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="KEY=VALUE",
        help="a setting of the Plan, such as fetch.workers=32 or process.batch=8; of a training loader.workers=4, accumulate=2",
    )
    parser.add_argument(
        "--speedup",
        action="append",
        default=[],
        metavar="STAGE=TIMES",
        help="a stage (of a training: a part) that is TIMES as fast",
    )
    parser.add_argument("--drop", action="append", default=[], metavar="STAGE", help="a stage that costs nothing more")
    parser.add_argument(
        "--cache",
        action="append",
        default=[],
        metavar="STAGE=SHARE",
        help="the share of items that a cache answers for a stage, such as 0.3 or 30%%",
    )
    parser.add_argument(
        "--every",
        action="append",
        default=[],
        metavar="STAGE=N",
        help="only every N-th item of a stage is done, and the others get its last answer",
    )
    parser.add_argument(
        "--to-device",
        action="append",
        default=[],
        metavar="STAGE=TIME",
        help="a stage (of a training: a part of loading) that runs on the device, and takes this long for an item there",
    )
    parser.add_argument(
        "--curve",
        action="append",
        default=[],
        metavar="STAGE=FILE",
        help="cost curve of a device stage, by batch size: a run folder of another engine, or JSON {size: seconds}; of a "
        "training step=FILE: JSON of `headrace train batch`, or a run with other batches",
    )
    parser.add_argument(
        "--formats",
        metavar="FILE",
        help="of a training, with --set format=NAME: what an item costs in each format, JSON of `headrace pack --try`",
    )
    parser.add_argument("--cores", metavar="N", help="N cores instead of the run's")
    parser.add_argument("--devices", metavar="N", help="N devices side by side instead of 1")
    parser.add_argument(
        "--arrival-rate", metavar="RATE", help="jobs that arrive at random times, such as 100/s, instead of the run's"
    )
    parser.add_argument(
        "--deadline",
        metavar="TIME",
        help="what cannot be answered in this time, such as 100ms, is refused, as `headrace serve` does",
    )
    parser.add_argument(
        "--quiet-machine", action="store_true", help="without the other programs that used the machine during the run"
    )


def change_of(args: argparse.Namespace, plan: Plan, stages: Sequence[StageInfo]) -> Change:
    """Return the change that the options of `add_change_arguments` describe.

    Args:
        args: As parsed.
        plan: The recorded run's Plan, resolved.
        stages: Its stages.

    Raises:
        SettingsError: If an option is malformed, impossible, or names a stage that the run does not have.
        RunFolderError: If a run folder that `--curve` names cannot be read.
    """
    from headrace.base.goals import parse_rate
    from headrace.base.units import parse_duration, parse_seconds
    from headrace.runs.formats.prediction import Change

    names = [stage.name for stage in stages]
    _refuse_contradictions(args)
    if args.formats:
        raise SettingsError("--formats is for the run of a training, and this run is that of a pipeline")
    return Change(
        settings=plan_settings(args.settings, plan, stages),
        speedups=_parse_by_stage("--speedup", args.speedup, [*names, _RECEIVING], _times),
        drop=tuple(dict.fromkeys(_check_stage("--drop", name, names) for name in args.drop)),
        cache_hits=_parse_by_stage("--cache", args.cache, names, _share),
        every={stage: int(number) for stage, number in _parse_by_stage("--every", args.every, names, _whole).items()},
        on_device=_parse_by_stage("--to-device", args.to_device, names, parse_duration),
        cost_curves=_curves(args.curve, stages),
        cores=_parse_optional("--cores", args.cores, _cores),
        devices=_parse_optional("--devices", args.devices, _devices),
        arrival_rate=_parse_optional("--arrival-rate", args.arrival_rate, parse_rate),
        deadline_seconds=_parse_optional("--deadline", args.deadline, parse_seconds),
        quiet=args.quiet_machine,
    )


def training_changes_of(args: argparse.Namespace) -> list[Change]:
    """Return the changes that the options describe for the run of a training: one, or one for each combination of `--vary`.

    Raises:
        SettingsError: If an option is malformed or names what a training does not have, or nothing is changed.
    """
    import msgspec

    from headrace.base.units import parse_duration
    from headrace.cli.cost_files import format_costs, step_curves
    from headrace.diagnose.training.change_settings import NAMES
    from headrace.runs.formats.prediction import Change

    _refuse_contradictions(args)
    change = Change(
        settings=tuple("=".join(part.strip() for part in text.split("=", 1)) for text in args.settings),
        speedups=_parse_by_stage("--speedup", args.speedup, NAMES, _times),
        drop=tuple(dict.fromkeys(_check_stage("--drop", name, NAMES) for name in args.drop)),
        on_device=_parse_by_stage("--to-device", args.to_device, NAMES, parse_duration),
        cost_curves=step_curves(args.curve),
        format_costs=format_costs(args.formats) if args.formats else {},
        cores=_parse_optional("--cores", args.cores, _cores),
        quiet=args.quiet_machine,
    )
    given = ("cache", "every", "devices", "arrival_rate", "deadline")
    for option in (f"--{name.replace('_', '-')}" for name in given if getattr(args, name)):
        hint = "; --set cache=ram keeps the items of a data set in memory" if option == "--cache" else ""
        raise SettingsError(
            f"{option} is for runs of pipelines, and this run is a training: it takes --set, --speedup, --drop, --to-device, "
            f"--curve, --formats, --cores and --quiet-machine{hint}"
        )
    if not args.vary and change.is_nothing:
        raise SettingsError(
            "nothing is changed; say what, such as --set loader.workers=4, --speedup augment=2 or --vary loader.workers=1,2,4"
        )
    varied = parse_varied(args.vary)
    return [msgspec.structs.replace(change, settings=(*change.settings, *settings)) for settings in varied]


def _refuse_contradictions(args: argparse.Namespace) -> None:
    """Raise SettingsError if two options say different things of one."""
    keys = [text.partition("=")[0].strip() for option in (args.settings, getattr(args, "vary", [])) for text in option]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise SettingsError(f"{twice} is set twice, and only one value can be predicted; give it once")
    faster = {text.partition("=")[0].strip() for text in args.speedup}
    both = next((stage for stage in args.drop if stage in faster), None)
    if both is not None:
        raise SettingsError(f"--drop {both} and --speedup {both} contradict one another; give one of them")


def plan_settings(settings: Sequence[str], plan: Plan, stages: Sequence[StageInfo]) -> tuple[str, ...]:
    """Return settings of the Plan as `Plan.with_settings` takes them, checked against the recorded stages.

    `instances` of a model are workers of the stages that call it, which a recorded Plan has; of a stage, its own. `devices`
    give those one for each device, unless their number is said too.
    `model.batch` and the like, which the Plan's table `[model]` does not have, mean the device stage if there is one only.

    Raises:
        SettingsError: If one is malformed or impossible, or names a stage that the run does not have.
    """
    from headrace.base.settings import unknown_key

    told = [one for setting in settings for one in _tell_instances(setting, plan, stages)]
    told = [*[one for setting in settings for one in _tell_devices(setting, plan, stages)], *told]
    found = tuple(_add_device_stage(setting, stages) for setting in told)
    names = [stage.name for stage in stages]
    for name in plan.with_settings(found).stages:
        if name not in names:
            raise unknown_key(name, "--set: this run's stages", names)
    return found


def parse_varied(varied: Sequence[str]) -> list[tuple[str, ...]]:
    """Return every combination of values of `KEY=VALUE,VALUE,...`, each as settings `KEY=VALUE`.

    Raises:
        SettingsError: If one has no values, or there are more than 64 combinations.
    """
    columns = [_values(text) for text in varied]
    count = math.prod(len(column) for column in columns)
    if count > MOST_SCENARIOS:
        raise SettingsError(
            f"--vary makes {count} scenarios, and {MOST_SCENARIOS} is the most; vary less at once: `headrace tune` searches"
        )
    return list(itertools.product(*columns))


def _values(text: str) -> list[str]:
    key, equals, written = text.partition("=")
    values = list(dict.fromkeys(value.strip() for value in written.split(",")))
    if not (key and equals and all(values)):
        raise SettingsError(f"--vary {text!r}: expected KEY=VALUE,VALUE,... such as fetch.workers=8,16,32")
    return [f"{key.strip()}={value}" for value in values]


def _tell_instances(setting: str, plan: Plan, stages: Sequence[StageInfo]) -> list[str]:
    """Return a setting of `instances` as those of workers; any other as it is."""
    table, last, value = _model_setting(setting)
    if last != "instances":
        return [setting]
    return [f"{name}.workers={value}" for name in _callers(setting, table, plan, stages)]


def _tell_devices(setting: str, plan: Plan, stages: Sequence[StageInfo]) -> list[str]:
    """Return what a setting of `devices` says of workers, which come before what the user says of them; none for any other."""
    from headrace.base.plan import Plan

    table, last, value = _model_setting(setting)
    if last != "devices":
        return []
    devices = Plan().with_settings([f"model.devices={value}"]).model.devices or ()
    return [f"{name}.workers={len(devices)}" for name in _callers(setting, table, plan, stages)]


def _model_setting(setting: str) -> tuple[str, str, str]:
    """Return the table, the key and the value of a setting; an empty key where nothing is set."""
    path, equals, value = setting.partition("=")
    table, _, last = path.strip().removeprefix("stages.").rpartition(".")
    return table, last if equals else "", value


def _callers(setting: str, table: str, plan: Plan, stages: Sequence[StageInfo]) -> list[str]:
    """Return the stages that call the model of a table; `model` is that of all that have none of their own."""
    from headrace.base.plan import model_key

    devices = {stage.name: model_key(stage.task, stage.name) for stage in stages if stage.kind == "device"}
    named = [name for name, key in devices.items() if table in (name, f"models.{key}")]
    if table == "model":
        named = [name for name, key in devices.items() if key not in plan.models]
    if not named:
        raise SettingsError(
            f"--set {setting}: no stage of this run calls that model; its device stages are {', '.join(devices) or 'none'}, "
            "and [model] means all of those without a table of their own in [models]"
        )
    return named


def _add_device_stage(setting: str, stages: Sequence[StageInfo]) -> str:
    import dataclasses

    from headrace.base.plan import ModelPlan, StagePlan

    first, dot, rest = setting.partition(".")
    key = rest.partition("=")[0].partition(".")[0].strip()
    of_stages, of_model = ({part.name for part in dataclasses.fields(record)} for record in (StagePlan, ModelPlan))
    if first.strip() != "model" or not dot or key in of_model or key not in of_stages:
        return setting
    if any(stage.name == "model" for stage in stages):
        return setting
    devices = [stage.name for stage in stages if stage.kind == "device"]
    if len(devices) != 1:
        raise SettingsError(
            f"--set {setting}: which stage is the model? This run has {len(devices)} device stages "
            f"({', '.join(devices) or 'none'}); write STAGE.{rest}"
        )
    return f"{devices[0]}.{rest}"


def _parse_by_stage(
    option: str, given: Sequence[str], names: Sequence[str], parse: Callable[[str], float]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in given:
        name, value = _stage_and_value(option, text, names)
        if name in found:
            raise SettingsError(f"{option} names {name} twice; give it one value")
        found[name] = _parse(f"{option} {name}", value, parse)
    return found


def _stage_and_value(option: str, text: str, names: Sequence[str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise SettingsError(f"{option} {text!r}: expected STAGE=VALUE, with a stage of {', '.join(names)}")
    return _check_stage(option, name.strip(), names), value.strip()


def _check_stage(option: str, name: str, names: Sequence[str]) -> str:
    from headrace.base.settings import unknown_key

    if name not in names:
        raise unknown_key(name, f"{option}: this run's stages", names)
    return name


def _parse_optional(option: str, text: str | None, parse: Callable[[str], Any]) -> Any:
    return None if text is None else _parse(option, text, parse)


def _parse(option: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise SettingsError(f"{option}: {error}") from None


def _times(text: str) -> float:
    """Return how many times as fast: `2`, `2x`, `0.5`."""
    what = f"how many times as fast, above 0, such as 2, got {text!r}"
    times = _number(text.removesuffix("x"), what)
    if not 1e-6 <= times <= 1e6:
        raise ValueError(f"expected {what}; allowed: 0.000001 to 1000000")
    return times


def _cores(text: str) -> float:
    return _number(text, f"a number of cores above 0, got {text!r}")


def _devices(text: str) -> int:
    return _whole(text, "of devices, ")


def _whole(text: str, of_what: str = "") -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise ValueError(f"expected a whole number {of_what}1 or more, got {text!r}")
    return int(text)


def _number(text: str, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"expected {expected}")
    return value


def _share(text: str) -> float:
    """Return a share from `0.3` or `30%`."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError(f"expected a share from 0 to 1 such as 0.3 or 30%, got {text!r}")
    return value


def _curves(given: Sequence[str], stages: Sequence[StageInfo]) -> dict[str, dict[int, float]]:
    from headrace.cli.cost_files import curve_of_file

    found: dict[str, dict[int, float]] = {}
    for text in given:
        name, where = _stage_and_value("--curve", text, [stage.name for stage in stages])
        kind = next(stage.kind for stage in stages if stage.name == name)
        if kind != "device":
            raise SettingsError(
                f"--curve {text}: {name} is no device stage and takes no batches; --speedup {name}=TIMES says how much faster"
            )
        if name in found:
            raise SettingsError(f"--curve names {name} twice; give it one file")
        found[name] = _curve_of_run(where, name) if Path(where).is_dir() else curve_of_file(where)
    return found


def _curve_of_run(where: str, name: str) -> dict[int, float]:
    """Return the cost curve of a run: of the stage of this name, or of the only one.

    As its own batches had it where it can be replayed, like the curve that it is to replace; else as warm-up measured it.
    """
    from headrace.base.errors import HeadraceError
    from headrace.diagnose.analysis import Analysis
    from headrace.runs.reader import read_run

    run = read_run(where)
    try:
        costs = Analysis(run).replay.costs
    except HeadraceError:
        costs = {}
    cost = costs.get(name) or (next(iter(costs.values())) if len(costs) == 1 else None)
    if cost is not None:
        return {int(size): float(seconds) for size, seconds in zip(cost.sizes, cost.seconds, strict=True)}
    curves = run.info.cost_curves
    measured = curves.get(name) or (next(iter(curves.values())) if len(curves) == 1 else {})
    curve = {size: statistics.median(seconds) for size, seconds in sorted(measured.items()) if seconds}
    if not curve:
        held = f"it holds those of {', '.join(curves)}" if curves else "it holds none"
        raise RunFolderError(
            f"{where} has no cost curve of {name}; {held}. A run with run.warm_up = true measures one for each device stage"
        )
    return curve
