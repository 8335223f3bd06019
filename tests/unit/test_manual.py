"""The manual keeps up with the code: commands, settings of a Plan, public names, and links of the pages at the root."""

import ast
import dataclasses
import re
import types
from pathlib import Path

import pytest

import headrace
from headrace.base import plan
from headrace.base.network_rules import NetworkPlan
from headrace.base.records import Span
from headrace.cli.run import as_dict
from headrace.runs.errors_log import ErrorLine
from headrace.runs.run_folder import RunInfo

ROOT = Path(__file__).resolve().parents[2]
CLI = ROOT / "src" / "headrace" / "cli"
SETTINGS = (plan.Plan, plan.StagePlan, plan.DecodePlan, plan.ModelPlan, plan.SourcePlan, plan.RunPlan, NetworkPlan)
#: Constants and markers that every module has and nobody means by "public".
FOREIGN = {"annotations", "TYPE_CHECKING"}


def commands() -> list[str]:
    """Return the names of the commands: modules of `cli` with `add_arguments` and `run`."""
    found = []
    for file in sorted(CLI.glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if {"add_arguments", "run"} <= functions:
            found.append(file.stem)
    return found


def test_every_command_is_in_the_manual() -> None:
    """Each command has a heading of its own in docs/reference/commands.md."""
    text = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    missing = [name for name in commands() if not re.search(rf"^## headrace {name}\b", text, re.MULTILINE)]
    assert commands()
    assert not missing, f"docs/reference/commands.md has no heading '## headrace NAME' for: {', '.join(missing)}"


def test_every_setting_of_a_plan_is_in_the_guide() -> None:
    """Each field of each table of a Plan stands in docs/guides/plans.md, as code."""
    text = (ROOT / "docs" / "guides" / "plans.md").read_text(encoding="utf-8")
    fields = {
        f"{record.__name__}.{field.name}": field.name for record in SETTINGS for field in dataclasses.fields(record)
    }
    missing = [where for where, name in fields.items() if not re.search(rf"`\[?{name}(\.NAME|\.TASK)?\]?`", text)]
    assert not missing, f"docs/guides/plans.md does not explain: {', '.join(missing)}"


@pytest.mark.parametrize(
    ("page", "record"),
    [("design.md", Span), ("reference/run-folder.md", RunInfo), ("reference/run-folder.md", ErrorLine)],
)
def test_every_field_that_is_stored_is_in_the_manual(page: str, record: type) -> None:
    """Each column of the span table, and each key of the run folder's files, stands on its page, as code."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    missing = [name for name in record.__annotations__ if f"`{name}`" not in text]
    assert not missing, f"docs/{page} does not explain: {', '.join(missing)}"


def test_every_key_of_the_json_of_a_run_is_in_the_manual(tmp_path: Path) -> None:
    """Each key that `headrace run --json` prints, at any level that is not data, stands in docs/reference/json.md."""
    (tmp_path / "one.txt").touch()
    source = headrace.folder(tmp_path, patterns=["*.txt"])
    stages = [headrace.stage("name", str), headrace.stage("upper", list, kind="device")]
    document = as_dict(headrace.run(headrace.Pipeline(source, stages=stages)))
    records = [document, document["counters"], document["latency_seconds"], document["stages"][1]]
    records += [document["stages"][1]["batches"]]
    text = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    missing = {key for record in records for key in record if f"`{key}`" not in text}
    assert not missing, f"docs/reference/json.md does not explain: {', '.join(sorted(missing))}"


@pytest.mark.parametrize("name", headrace.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    """Each public name exists and says what it is."""
    text = getattr(headrace, name).__doc__
    assert text
    assert text.strip()


def test_public_names_are_those_that_are_visible() -> None:
    """`__all__` is sorted and equals what `dir` shows of headrace's own, and what type checkers see."""
    for name in headrace.__all__:
        getattr(headrace, name)
    visible = {name for name in dir(headrace) if not name.startswith("_") and name not in FOREIGN and _is_ours(name)}
    assert sorted(visible) == headrace.__all__
    assert sorted(_typed_names()) == headrace.__all__


def _is_ours(name: str) -> bool:
    """Return whether a name is headrace's own and not a folder that happens to be loaded."""
    value = getattr(headrace, name)
    if isinstance(value, types.ModuleType):
        return value.__name__.startswith("headrace.") and value.__name__ != f"headrace.{name}"
    return str(getattr(value, "__module__", "")).startswith("headrace")


def _typed_names() -> list[str]:
    """Return the names that the package imports for type checkers alone."""
    tree = ast.parse((ROOT / "src" / "headrace" / "__init__.py").read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    return [alias.asname or alias.name for node in imports for alias in node.names]


def test_the_readme_is_short() -> None:
    """Whoever wants more follows its links."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


@pytest.mark.parametrize("page", ["src/headrace/__init__.py", "CONTRIBUTING.md", "docs/design.md"])
def test_maps_of_the_package_have_every_folder(page: str) -> None:
    """A newcomer who reads a map finds each folder on it."""
    folders = {path.parent.name for path in (ROOT / "src" / "headrace").glob("*/__init__.py")}
    missing = folders - set(re.findall(r"[a-z]+", (ROOT / page).read_text(encoding="utf-8")))
    assert not missing, f"{page} does not name {', '.join(sorted(missing))}"


def test_the_reading_order_of_the_pipeline_has_every_file() -> None:
    """A newcomer who follows an image through `pipeline` learns what each file is for."""
    folder = ROOT / "src" / "headrace" / "pipeline"
    named = re.findall(r"\w+\.py", (folder / "__init__.py").read_text(encoding="utf-8"))
    assert sorted(named) == sorted(file.name for file in folder.glob("*.py") if file.name != "__init__.py")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "changes.d/README.md"])
def test_links_of_the_pages_outside_the_manual_lead_somewhere(page: str) -> None:
    """Every relative link of a page that `make docs` does not build names a file that exists."""
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert links
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert not missing, f"{page} links to what does not exist: {', '.join(missing)}"
