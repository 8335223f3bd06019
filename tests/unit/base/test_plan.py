"""The Plan: parsed, checked, resolved, written back."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import string
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import SettingsError
from headrace.base.plan import (
    DecodePlan,
    ModelPlan,
    Plan,
    RunPlan,
    SourcePlan,
    StageDefaults,
    StagePlan,
    resolve,
)
from headrace.base.toml import parse_toml

EXAMPLE = """
version = 1

[stages.fetch]
workers = 32
queue_bytes = "64MB"
max_wait_seconds = 0
retry_budget_seconds = "10s"
options = { timeout_seconds = 5.0 }

[stages."faces.process"]
batch = 8
max_wait_seconds = "2ms"

[decode]
scale = "full"

[model]
engine = "emulated"
threads = 2

[model.options]
item_seconds = 0.034

[models.faces]
artifact = "faces.onnx"

[source]
receivers = 2
visibility_seconds = "2min"

[run]
ordered = true
"""


def write(folder: Path, text: str) -> Path:
    """A plan file with this text."""
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_load(tmp_path: Path) -> None:
    """Every table of a file is read, quantities with units too."""
    assert Plan.load(write(tmp_path, EXAMPLE)) == Plan(
        stages={
            "fetch": StagePlan(
                workers=32, queue_bytes=64 * 10**6, retry_budget_seconds=10.0, options={"timeout_seconds": 5.0}
            ),
            "faces.process": StagePlan(batch=8, max_wait_seconds=0.002),
        },
        decode=DecodePlan(scale="full"),
        model=ModelPlan(engine="emulated", threads=2, options={"item_seconds": 0.034}),
        models={"faces": ModelPlan(artifact="faces.onnx")},
        source=SourcePlan(receivers=2, visibility_seconds=120.0),
        run=RunPlan(ordered=True),
    )


def test_an_empty_file_is_the_default_plan(tmp_path: Path) -> None:
    """Every table and every key may be left out."""
    assert Plan.load(write(tmp_path, "")) == Plan()


# What a Plan may hold: any text for a name, and for options whatever TOML can say.
TEXTS = st.text(st.characters(codec="utf-8"), max_size=10)
NAMES = st.one_of(st.sampled_from(["fetch", "faces.process", "a b", "é", "", '"', "\x7f"]), TEXTS)
WHOLE = st.one_of(st.none(), st.integers(1, 10**12))
FEW = st.one_of(st.none(), st.integers(1, 256))
SECONDS = st.one_of(st.floats(0, 1e6), st.integers(0, 100))
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    TEXTS,
    st.dates(),
    st.times(),
    st.datetimes(),
    st.datetimes(timezones=st.just(datetime.UTC)),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, min_size=1, max_size=3)),
    max_leaves=5,
)
OPTIONS = st.dictionaries(NAMES, VALUES, max_size=3)
STAGES = st.builds(
    StagePlan,
    executor=st.sampled_from([None, "thread", "process", "inline"]),
    workers=FEW,
    queue_items=WHOLE,
    queue_bytes=WHOLE,
    batch=FEW,
    max_wait_seconds=SECONDS,
    attempts=FEW,
    retry_budget_seconds=SECONDS,
    options=OPTIONS,
)
MODELS = st.builds(
    ModelPlan,
    artifact=st.one_of(st.none(), TEXTS),
    engine=TEXTS,
    threads=st.one_of(st.none(), st.integers(1, 1024)),
    options=OPTIONS,
)
PLANS = st.builds(
    Plan,
    stages=st.dictionaries(NAMES, STAGES, max_size=3),
    decode=st.builds(
        DecodePlan,
        scale=st.sampled_from(["auto", "full"]),
        decoder=st.sampled_from(["auto", "simplejpeg", "opencv", "pillow"]),
    ),
    model=MODELS,
    models=st.dictionaries(NAMES, MODELS, max_size=2),
    source=st.builds(
        SourcePlan,
        receivers=st.integers(1, 100),
        receive_batch=st.integers(1, 100),
        wait_seconds=SECONDS,
        max_in_flight=WHOLE,
        visibility_seconds=st.one_of(st.none(), st.floats(0.001, 1e6)),
        max_receives=WHOLE,
    ),
    run=st.builds(RunPlan, ordered=st.booleans(), warm_up=st.booleans(), grace_seconds=SECONDS),
)


@given(PLANS)
def test_round_trip(plan: Plan) -> None:
    """A Plan written as TOML is read back as the same Plan, with the same id, however it is filled."""
    copy = Plan.from_table(tomllib.loads(plan.as_toml()))
    assert copy == plan
    assert copy.plan_id == plan.plan_id


@given(PLANS)
def test_round_trip_of_the_table(plan: Plan) -> None:
    """The table of a Plan is read back as the same Plan."""
    assert Plan.from_table(plan.as_table()) == plan


def test_the_table_leaves_out_what_is_none() -> None:
    """TOML has no None, so what is not set is not there."""
    table = Plan(stages={"fetch": StagePlan(workers=3)}).as_table()
    assert table["stages"]["fetch"] == {"workers": 3, "max_wait_seconds": 0.0, "retry_budget_seconds": 30.0}
    assert "models" not in table


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "[stages.fetch]\nwokers = 3",
            ["[stages.fetch]: unknown key 'wokers'", "Did you mean 'workers'?", "queue_items"],
        ),
        ("[stages.fetch]\nworkers = 0", ["[stages.fetch]: workers = 0", "allowed: a whole number >= 1"]),
        ("[stages.fetch]\nworkers = 2.5", ["[stages.fetch]: workers = 2.5", "expected a whole number"]),
        ("[stages.fetch]\nqueue_items = -1", ["queue_items = -1", ">= 1"]),
        ("[stages.fetch]\nqueue_bytes = '3 apples'", ["queue_bytes = '3 apples'", "'256MB'"]),
        ("[stages.fetch]\nbatch = 0", ["batch = 0", ">= 1"]),
        ("[stages.fetch]\nattempts = 0", ["attempts = 0", ">= 1"]),
        ("[stages.fetch]\nmax_wait_seconds = -1", ["max_wait_seconds = -1", "'300ms'"]),
        ("[stages.fetch]\nexecutor = 'fork'", ["executor = 'fork'", "'thread' or 'events' or 'process' or 'inline'"]),
        ("[stages.fetch]\noptions = 3", ["options = 3", "a table"]),
        (
            "[stages.fetch]\nexecutor = 'process'\ntime_limit_seconds = 0",
            ["time_limit_seconds = 0", "allowed: more than 0"],
        ),
        ("[stages.fetch]\ntime_limit_seconds = 1", ["time_limit_seconds = 1", 'executor = "process"']),
        ("[stages]\nfetch = 3", ["[stages.fetch] must be a table, got 3"]),
        ("stages = 3", ["stages = 3", "tables such as [stages.NAME]"]),
        ("decode = 3", ["[decode] must be a table, got 3"]),
        ("[decode]\nscale = 'half'", ["[decode]: scale = 'half'", "'auto' or 'full'"]),
        ("[decode]\ndecoder = 'turbo'", ["decoder = 'turbo'", "'simplejpeg'"]),
        ("[model]\nthreads = 0", ["[model]: threads = 0", "from 1 to 4096"]),
        ("[model]\nartifact = 3", ["[model]: artifact = 3", "expected text"]),
        ("[models.faces]\nthread = 3", ["[models.faces]: unknown key 'thread'", "Did you mean 'threads'?"]),
        ("[source]\nreceivers = 0", ["[source]: receivers = 0", ">= 1"]),
        ("[source]\nmax_receives = 0", ["[source]: max_receives = 0", ">= 1"]),
        ("[source]\nvisibility_seconds = 0", ["visibility_seconds = 0", "more than 0"]),
        ("[run]\nordered = 'yes'", ["[run]: ordered = 'yes'", "true or false"]),
        ("[process]\nbatch = 8", ["there is no table [process]; that of a stage process is [stages.process]"]),
        ("[runs]\nordered = true", ["unknown key 'runs'", "Did you mean 'run'?", "stages"]),
        ("version = 2", ["version = 2", "1, the only version"]),
    ],
)
def test_errors_name_key_value_and_what_is_allowed(tmp_path: Path, text: str, parts: list[str]) -> None:
    """Every error names the file, the key with its value, and what would do."""
    path = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        Plan.load(path)
    message = str(caught.value)
    assert message.startswith(f"plan {path}: ")
    assert [part for part in parts if part not in message] == []


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file is named."""
    with pytest.raises(SettingsError, match=r"plan .*none\.toml cannot be read: "):
        Plan.load(tmp_path / "none.toml")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are no plan."""
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="cannot be read"):
        Plan.load(path)


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    """Bad TOML is told with its line."""
    with pytest.raises(SettingsError, match=r"is not TOML: .*line 2"):
        Plan.load(write(tmp_path, "\nworkers 3"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version = 1\na" + ".a" * 20_000 + " = 1", "line 2 has a key of more than 500 parts"),
        ("[" + '"a" . ' * 600 + "a]", "line 1 has a key of more than 500 parts"),
        ("a = " + "[" * 100_000, "nested too deeply"),
    ],
    ids=["key", "table", "nested"],
)
def test_a_file_that_keeps_its_reader_busy(tmp_path: Path, text: str, says: str) -> None:
    """A key of thousands of parts takes Python's reader seconds: it is refused before; so is what nests without end."""
    with pytest.raises(SettingsError, match=f"is not TOML: .*{says}"):
        Plan.load(write(tmp_path, text))


def test_dots_in_texts_are_no_parts_of_keys() -> None:
    """A long list of addresses on one line is what it was, whatever its texts hold."""
    addresses = [f"10.0.{number // 256}.{number % 256}" for number in range(1_000)]
    odd = 'a \\" . ' * 501
    text = f"[network]\nallow = {json.dumps(addresses)} # {'.' * 10}\nodd = \"{odd}\"\nother = '{'.' * 600}'"
    assert parse_toml(text)["network"]["allow"] == addresses


@pytest.mark.parametrize(
    ("setting", "table"),
    [
        ("fetch.workers=32", {"stages": {"fetch": {"workers": 32}}}),
        ("stages.fetch.workers=32", {"stages": {"fetch": {"workers": 32}}}),
        (" fetch.workers = 32 ", {"stages": {"fetch": {"workers": 32}}}),
        ("decode.workers=3", {"stages": {"decode": {"workers": 3}}}),
        ("decode.scale=full", {"decode": {"scale": "full"}}),
        ("faces.decode.workers=3", {"stages": {"faces.decode": {"workers": 3}}}),
        ('stages."faces.process".batch=3', {"stages": {"faces.process": {"batch": 3}}}),
        ("faces.fetch.options.max_bytes=3", {"stages": {"faces.fetch": {"options": {"max_bytes": 3}}}}),
        ("fetch.options.max_bytes=5MB", {"stages": {"fetch": {"options": {"max_bytes": "5MB"}}}}),
        ("fetch.retry_budget_seconds=5s", {"stages": {"fetch": {"retry_budget_seconds": 5.0}}}),
        ("model.engine=emulated", {"model": {"engine": "emulated"}}),
        ('model.engine="emulated"', {"model": {"engine": "emulated"}}),
        ("model.artifact=a=b.onnx", {"model": {"artifact": "a=b.onnx"}}),
        ("model.options.names=['a', 'b']", {"model": {"options": {"names": ["a", "b"]}}}),
        ("models.faces.threads=2", {"models": {"faces": {"threads": 2}}}),
        ("run.ordered=true", {"run": {"ordered": True}}),
        ("source.receivers=2", {"source": {"receivers": 2}}),
    ],
)
def test_with_settings(setting: str, table: dict[str, Any]) -> None:
    """A setting's path leads to its place in the file, and its value is TOML or a bare word."""
    assert Plan().with_settings([setting]) == Plan.from_table(table)


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        (
            "decode.max_pixel=5",
            r"\[decode\] and \[stages\.decode\]: unknown key 'max_pixel'\. Did you mean 'max_pixels'\?",
        ),
        ("decode.worker=5", r"\[decode\] and \[stages\.decode\]: .* Did you mean 'workers'\?"),
        ("network.alow=1", r"\[network\] and .* Did you mean 'allow'\?"),
    ],
)
def test_a_misspelt_setting_is_looked_for_in_table_and_stage(setting: str, hint: str) -> None:
    """A table's name may be a stage's too: the nearest key of both is named."""
    with pytest.raises(SettingsError, match=hint):
        Plan().with_settings([setting])


def test_with_settings_leaves_the_rest() -> None:
    """Settings replace one key each, the later one winning, and the Plan itself does not change."""
    plan = Plan(stages={"fetch": StagePlan(workers=3, attempts=2)})
    changed = plan.with_settings(["fetch.workers=4", "fetch.workers=5", "model.threads=2"])
    assert changed == Plan(stages={"fetch": StagePlan(workers=5, attempts=2)}, model=ModelPlan(threads=2))
    assert plan == Plan(stages={"fetch": StagePlan(workers=3, attempts=2)})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("fetch.workers", "--set = 'fetch.workers' is not possible; allowed: KEY=VALUE"),
        ("workers=3", "--set = 'workers=3' is not possible"),
        ("fetch..workers=3", "--set = 'fetch..workers=3' is not possible"),
        ("=3", "--set = '=3' is not possible"),
        ("fetch.wrokers=3", "[stages.fetch]: unknown key 'wrokers'. Did you mean 'workers'?"),
        ("faces.decode.wrokers=3", "[stages.faces.decode]: unknown key 'wrokers'. Did you mean 'workers'?"),
        ("fetch.workers=many", "[stages.fetch]: workers = 'many' has the wrong type; expected a whole number"),
        ("fetch.workers=", "[stages.fetch]: workers = ''"),
        ("model.engine.name=x", "--set = 'model.engine.name=x' is not possible; allowed: a path to a setting"),
        ("stages.fetch=3", "[stages.fetch] must be a table, got 3"),
    ],
)
def test_bad_settings(setting: str, message: str) -> None:
    """A setting that is malformed, unknown or impossible is an error that shows it."""
    with pytest.raises(SettingsError) as caught:
        Plan().with_settings([setting])
    assert message in str(caught.value)


FETCH = StageDefaults(name="fetch", kind="io")
DECODE = StageDefaults(name="decode", kind="cpu")
RESIZE = StageDefaults(name="resize", kind="cpu", executor="inline")
PROCESS = StageDefaults(name="process", kind="device", task="faces")
DELIVER = StageDefaults(name="deliver", kind="io", workers=8)
STAGE_DEFAULTS = [FETCH, DECODE, RESIZE, PROCESS, DELIVER]


def resolved(plan: Plan | None = None, cores: int = 4) -> Plan:
    """A Plan as resolved for five common stages."""
    return resolve(plan or Plan(), STAGE_DEFAULTS, cores)


def test_resolve_fills_in_every_stage() -> None:
    """Each stage of the pipeline has a table afterwards, in the pipeline's order."""
    assert list(resolved().stages) == ["fetch", "decode", "resize", "process", "deliver"]
    for stage in resolved().stages.values():
        missing = [part.name for part in dataclasses.fields(stage) if getattr(stage, part.name) is None]
        assert missing == ["time_limit_seconds", "memory_limit_bytes", "cache"]


def test_resolve_by_kind() -> None:
    """Stages of kind io get 16 workers, cpu stages the cores, device stages one; or what the stage asks for."""
    assert {name: stage.workers for name, stage in resolved(cores=6).stages.items()} == {
        "fetch": 16,
        "decode": 6,
        "resize": 6,
        "process": 1,
        "deliver": 8,
    }


def test_resolve_attempts() -> None:
    """What waits on the outside is tried three times, all else once: a computation fails the same way again."""
    assert [stage.attempts for stage in resolved().stages.values()] == [3, 1, 1, 1, 3]


def test_resolve_queues() -> None:
    """A queue holds four times what its workers take at once, at least 16 items, and two batches of a device before it."""
    plan = resolved(Plan(stages={"process": StagePlan(batch=32)}), cores=2)
    assert [stage.queue_items for stage in plan.stages.values()] == [64, 16, 16, 128, 64]
    assert {stage.queue_bytes for stage in plan.stages.values()} == {256 * 10**6}


@pytest.mark.parametrize(("receive_batch", "queue_items"), [(10, 16), (40, 40), (1000, 64)])
def test_resolve_queues_for_what_is_received_at_once(receive_batch: int, queue_items: int) -> None:
    """What one call of the source brings finds room in a queue, up to 64 items."""
    plan = resolved(Plan(source=SourcePlan(receive_batch=receive_batch)), cores=2)
    assert plan.stages["decode"].queue_items == queue_items


def test_resolve_keeps_what_is_written() -> None:
    """What the Plan says goes before every default."""
    written = StagePlan(
        executor="inline", workers=3, queue_items=5, queue_bytes=7, batch=2, attempts=9, max_wait_seconds=0.5
    )
    assert resolved(Plan(stages={"process": written})).stages["process"] == written


def test_workers_take_a_stage_out_of_line() -> None:
    """A stage that is inline by default gets workers of its own when the Plan gives it some."""
    assert resolved().stages["resize"].executor == "inline"
    assert resolved(Plan(stages={"resize": StagePlan(workers=2)})).stages["resize"].executor == "thread"


def test_workers_do_not_turn_processes_into_threads() -> None:
    """The number of workers says nothing about a stage that asks for processes."""
    python = StageDefaults(name="python", kind="cpu", executor="process")
    assert resolve(Plan(stages={"python": StagePlan(workers=2)}), [python], 4).stages["python"].executor == "process"


def test_resolving_twice_changes_nothing() -> None:
    """A resolved Plan, as stored with a run, is resolved to itself."""
    assert resolved(resolved()) == resolved()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(stages={"fecth": StagePlan()}), "[stages]: unknown key 'fecth'. Did you mean 'fetch'? Allowed: decode, "),
        (Plan(models={"face": ModelPlan()}), "[models]: unknown key 'face'. Did you mean 'faces'? Allowed: faces."),
        (Plan(stages={"fetch": StagePlan(batch=8)}), "stages.fetch.batch = 8 is not possible; allowed: only on device"),
        (
            Plan(stages={"decode": StagePlan(max_wait_seconds=1)}),
            "stages.decode.max_wait_seconds = 1 is not possible; allowed: only on device",
        ),
    ],
)
def test_resolve_refuses_what_the_pipeline_does_not_have(plan: Plan, message: str) -> None:
    """A stage or task that does not exist, or a setting that its stage cannot use, is an error."""
    with pytest.raises(SettingsError) as caught:
        resolved(plan)
    assert message in str(caught.value)


def test_plan_id_has_twelve_digits() -> None:
    """The id is short enough for every span to carry it."""
    plan_id = Plan().plan_id
    assert len(plan_id) == 12
    assert set(plan_id) <= set(string.hexdigits.lower())


def test_plan_id_is_stable() -> None:
    """The same settings give the same id, however and in whatever order they were written."""
    first = Plan(stages={"a": StagePlan(workers=1), "b": StagePlan(batch=2)}, run=RunPlan(grace_seconds=5))
    second = Plan.from_table(
        {
            "run": {"grace_seconds": "5s"},
            "stages": {"b": {"batch": 2, "max_wait_seconds": 0}, "a": {"workers": 1}},
            "version": 1,
        }
    )
    assert first == second
    assert first.plan_id == second.plan_id


BASE = Plan(
    stages={"a": StagePlan(executor="process", time_limit_seconds=1.0, options={"x": 1})}, models={"t": ModelPlan()}
)


def changed(record: Any, name: str) -> Any:
    """The record with one field changed, whatever its type."""
    value = getattr(record, name)
    new: Any = {"auto": "full", "process": "thread", "onnx": "emulated"}.get(value) if isinstance(value, str) else None
    if name == "decoder":
        new = "pillow"
    elif name == "artifact":
        new = "other.onnx"
    elif name == "executor":
        return record.with_executor("thread", record.workers)
    elif name == "memory_limit_bytes":
        new = 2**30
    elif name == "formats":
        new = ("jpeg",)
    elif name == "devices":
        new = (0, 1)
    elif isinstance(value, bool):
        new = not value
    elif isinstance(value, dict):
        new = {**value, "y": 2}
    elif name == "cache":
        new = "memory:2GB"
    elif new is None:
        new = (value or 0) + 7
    return dataclasses.replace(record, **{name: new})


CHANGES = [
    *(
        (f"stages.{part.name}", dataclasses.replace(BASE, stages={"a": changed(BASE.stages["a"], part.name)}))
        for part in dataclasses.fields(StagePlan)
    ),
    *(
        (f"{table}.{part.name}", dataclasses.replace(BASE, **{table: changed(getattr(BASE, table), part.name)}))
        for table in ("decode", "model", "source", "run")
        for part in dataclasses.fields(getattr(BASE, table))
    ),
    ("stage name", dataclasses.replace(BASE, stages={"b": BASE.stages["a"]})),
    ("models", dataclasses.replace(BASE, models={"t": ModelPlan(threads=2)})),
    ("resources", dataclasses.replace(BASE, resources={"gpu": 1})),
]


@pytest.mark.parametrize("plan", [plan for _, plan in CHANGES], ids=[name for name, _ in CHANGES])
def test_plan_id_tells_every_setting(plan: Plan) -> None:
    """Any other value of any setting gives another id."""
    assert plan != BASE
    assert plan.plan_id != BASE.plan_id


def test_plans_do_not_change() -> None:
    """A Plan is immutable: its id names it for good."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan().run = RunPlan()  # type: ignore[misc]


def test_formats_survive_the_file() -> None:
    """A list of formats is read, written and has one id, however it was given."""
    plan = Plan.from_table({"decode": {"formats": ["jpeg", "png"]}})
    assert plan.decode.formats == ("jpeg", "png")
    assert Plan.from_table(tomllib.loads(plan.as_toml())) == plan
    assert plan.plan_id == Plan(decode=DecodePlan(formats=("jpeg", "png"))).plan_id
    assert plan.with_settings(['decode.formats=["jpeg"]']).decode.formats == ("jpeg",)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"formats": ["jpeg", "exe"]}, "expected a list of 'jpeg' or 'png'"),
        ({"formats": "jpeg"}, "expected a list of 'jpeg' or 'png'"),
        ({"formats": []}, "at least one format"),
        ({"max_pixels": 0}, "max_pixels = 0 is not possible"),
        ({"max_pixels": 10**23}, "a whole number from 1 to 2^63 - 1"),
        ({"max_side": 2**31}, "max_side = 2147483648 is not possible; allowed: a whole number from 1 to 2^31 - 1"),
        ({"max_scans": "many"}, "max_scans = 'many' has the wrong type"),
    ],
)
def test_impossible_limits_of_decoding(table: dict[str, Any], said: str) -> None:
    """A limit that cannot be is told before the run, with what is allowed."""
    with pytest.raises(SettingsError, match=re.escape(said)):
        Plan.from_table({"decode": table})


@pytest.mark.parametrize("executor", [None, "thread", "inline"])
def test_memory_limit_needs_a_process(executor: Any) -> None:
    """Threads share their memory, so that no limit can be set for one; the error says what can."""
    with pytest.raises(SettingsError, match='only with executor = "process": the memory of a thread is that of all'):
        StagePlan(executor=executor, memory_limit_bytes=2**30)


def test_memory_limit_of_a_slip() -> None:
    """A limit in megabytes, forgotten to say so, is told at once."""
    with pytest.raises(SettingsError, match="memory_limit_bytes = 256 is not possible; allowed: at least 33,554,432"):
        StagePlan(executor="process", memory_limit_bytes=256)


def test_network_rules_are_part_of_a_plan() -> None:
    """The `[network]` table is read, written, set by key and added to; what an entry means is checked."""
    plan = Plan.from_table({"network": {"allow": ["10.0.0.0/8"], "public": False, "files": ["/srv/photos"]}})
    changed = plan.with_settings(['network.deny=["10.1.0.0/16"]', "network.ports=[443]"]).allowing([".example.com"])
    assert changed.network.allow == ["10.0.0.0/8", ".example.com"]
    assert (changed.network.deny, changed.network.ports, changed.network.public) == (["10.1.0.0/16"], [443], False)
    assert Plan.from_table(tomllib.loads(changed.as_toml())) == changed
    assert plan.allowing([]).plan_id == plan.plan_id != changed.plan_id
    with pytest.raises(SettingsError, match=r"\[network\]: allow = 'http://x' is not possible"):
        plan.with_settings(['network.allow=["http://x"]'])
    with pytest.raises(SettingsError, match=r"ports = 80 has the wrong type; expected a list of whole numbers"):
        plan.with_settings(["network.ports=80"])
    with pytest.raises(SettingsError, match=r"expected a list of texts"):
        plan.with_settings(["network.allow=10.0.0.1"])


def device(name: str, model: str = "", task: str = "") -> StageDefaults:
    """Return a device stage that opens a model."""
    return StageDefaults(name=name, kind="device", model=model, task=task)


def test_a_model_is_named_by_its_task_else_by_the_prefix_of_its_stages() -> None:
    """So modules without tasks can be told apart; stages of one module have one model."""
    plan = Plan(models={"det": ModelPlan(threads=2), "faces": ModelPlan(threads=3)})
    assert plan.model_of("", "det.process").threads == 2
    assert plan.model_of("", "det.decode").threads == 2
    assert plan.model_of("faces", "det.process").threads == 3
    assert plan.model_of("", "process") == plan.model
    resolved = resolve(plan, [device("det.process"), device("other.process", task="faces")], 2)
    assert resolved.models == plan.models
    assert plan.with_model("det", ModelPlan()).models == {"det": ModelPlan(), "faces": ModelPlan(threads=3)}
    assert plan.with_model("", ModelPlan(threads=5)).model.threads == 5


def test_one_file_does_not_take_the_place_of_several_models() -> None:
    """`[model]` would replace them all; each can be named, and models that are the same file may be replaced together."""
    plan = Plan(model=ModelPlan(artifact="new.onnx"))
    with pytest.raises(
        SettingsError, match=r"the place of 2 models: a.onnx, b.onnx.* one of \[models.det\], \[models.rec\]"
    ):
        resolve(plan, [device("det.process", "a.onnx"), device("rec.process", "b.onnx")], 2)
    resolve(plan, [device("det.process", "a.onnx"), device("rec.process", "a.onnx")], 2)
    named = dataclasses.replace(plan, models={"rec": ModelPlan(threads=1)})
    resolve(named, [device("det.process", "a.onnx"), device("rec.process", "b.onnx")], 2)


TWO_DEVICES = [
    StageDefaults(name="faces.process", kind="device", task="faces"),
    StageDefaults(name="plates.process", kind="device", task="plates"),
]


def test_instances_are_workers_of_the_stage_that_calls_the_model() -> None:
    """A resolved Plan has the workers alone, so that either can be changed afterwards; a model's own table goes first."""
    plan = Plan(model=ModelPlan(instances=3), models={"faces": ModelPlan(instances=2, threads=1)})
    resolved = resolve(plan, TWO_DEVICES, 4)
    assert {name: stage.workers for name, stage in resolved.stages.items()} == {"faces.process": 2, "plates.process": 3}
    assert resolved.model.instances is None
    assert resolved.models["faces"] == ModelPlan(threads=1)
    assert (
        resolve(resolved.with_settings(["plates.process.workers=1"]), TWO_DEVICES, 4).stages["plates.process"].workers
        == 1
    )


def test_instances_leave_a_bound_to_the_defaults() -> None:
    """The queue grows with them as it grows with workers."""
    (queue,) = {
        resolve(Plan.from_table(table), TWO_DEVICES[:1], 4).stages["faces.process"].queue_items
        for table in ({"model": {"instances": 8}}, {"stages": {"faces.process": {"workers": 8}}})
    }
    assert queue == 32


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (
            StagePlan(workers=4),
            "model.instances = 2 and stages.faces.process.workers = 4 say different things of one number",
        ),
        (StagePlan(executor="inline"), 'stages.faces.process.executor = "thread"'),
    ],
)
def test_instances_that_contradict_the_stage(stage: StagePlan, said: str) -> None:
    """Two numbers for one thing are refused with both; so are instances of a model that others' workers call."""
    with pytest.raises(SettingsError, match=re.escape(said)):
        resolve(Plan(stages={"faces.process": stage}, model=ModelPlan(instances=2)), TWO_DEVICES, 4)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"resources": {"gpu": 0}}, "[resources]: gpu = 0 is not possible; allowed: a whole number from 1"),
        ({"resources": {"gpu": "one"}}, "[resources]: gpu = 'one' is not possible"),
        ({"resources": 3}, "resources = 3 is not possible; allowed: a table such as gpu = 1"),
        ({"model": {"uses": {"gpu": True}}}, "uses: gpu = True is not possible"),
        ({"model": {"instances": 0}}, "instances = 0 is not possible; allowed: a whole number from 1 to 1024"),
        ({"model": {"threads": 10**8}}, "threads = 100000000 is not possible; allowed: a whole number from 1 to 4096"),
    ],
)
def test_impossible_resources(table: dict[str, Any], said: str) -> None:
    """Amounts are whole numbers from 1."""
    with pytest.raises(SettingsError, match=re.escape(said)):
        Plan.from_table(table)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            {"resources": {"gpu0": 1}, "models": {"faces": {"uses": {"gpu": 1}}}},
            "models.faces.uses: the Plan's [resources]: unknown key 'gpu'. Did you mean 'gpu0'? Allowed: gpu0.",
        ),
        ({"model": {"uses": {"gpu": 1}}}, "unknown key 'gpu'. Allowed: none."),
        (
            {"resources": {"gpu": 2}, "model": {"uses": {"gpu": 3}}},
            "model.uses.gpu = 3 is not possible; allowed: 1 to 2, for there is no more of it",
        ),
    ],
)
def test_resources_that_are_not_there(table: dict[str, Any], said: str) -> None:
    """A model that could never run is refused before anything does."""
    with pytest.raises(SettingsError, match=re.escape(said)):
        resolve(Plan.from_table(table), TWO_DEVICES, 4)


def test_resources_are_set_like_everything() -> None:
    """By `--set`, in a file, and back."""
    plan = Plan.from_table({"resources": {"gpu": 1}, "models": {"faces": {"uses": {"gpu": 1}}}})
    assert plan.with_settings(["resources.gpu=2"]).resources == {"gpu": 2}
    assert Plan.from_table(parse_toml(plan.as_toml())) == plan


def test_devices_give_the_stage_a_worker_each() -> None:
    """Unless the Plan says how many, a whole number for each; worker K has the device K modulo their count."""
    plan = Plan.from_table({"model": {"devices": [0, 2, 5]}})
    resolved = resolve(plan, TWO_DEVICES, 4)
    assert [stage.workers for stage in resolved.stages.values()] == [3, 3]
    assert [resolved.model.device_of(worker) for worker in range(4)] == [0, 2, 5, 0]
    assert resolved.model.on_device(2) == ModelPlan(options={"device": 2})
    assert resolve(Plan.from_table(parse_toml(resolved.as_toml())), TWO_DEVICES, 4) == resolved
    twice = resolve(plan.with_settings(["model.instances=6"]), TWO_DEVICES, 4)
    assert [stage.workers for stage in twice.stages.values()] == [6, 6]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"model": {"devices": []}}, "devices = [] is not possible; allowed: numbers of devices from 0, each once"),
        ({"model": {"devices": [1, 1]}}, "devices = [1, 1] is not possible"),
        ({"model": {"devices": [-1]}}, "devices = [-1] is not possible"),
        ({"model": {"devices": 2}}, "devices = 2 has the wrong type; expected a list of whole numbers"),
        (
            {"model": {"devices": [0, 1], "instances": 3}},
            "stages.faces.process.workers = 3 is not possible; allowed: a multiple of the 2 of model.devices",
        ),
        (
            {"model": {"devices": [0, 1]}, "stages": {"faces.process": {"executor": "inline"}}},
            "model.devices = [0, 1] is not possible: faces.process runs in the workers of the stage before it",
        ),
    ],
)
def test_impossible_devices(table: dict[str, Any], said: str) -> None:
    """None, one twice, no list; workers that would leave a device with fewer than the others, or are another stage's."""
    with pytest.raises(SettingsError, match=re.escape(said)):
        resolve(Plan.from_table(table), TWO_DEVICES, 4)
