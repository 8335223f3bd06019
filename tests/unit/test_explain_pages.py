"""The pages on verdicts keep up with the code: one for each class, linked, with the rules that decide and their thresholds."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from headrace.diagnose import diagnosis, verdict
from headrace.diagnose.training import (
    cost,
    device_costs,
    loading_costs,
    memory_costs,
    rank_costs,
    step_costs,
    uneven_shards,
    verdicts,
)
from headrace.diagnose.verdict import agreement, cores, proposal, ranking
from headrace.runs.formats.diagnosis import VerdictClass

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "src" / "headrace" / "diagnose" / "explain"
PARTS = ["What it means", "How it is recognised", "What it is confused with", "What to do", "A worked example"]
#: (module, what stands for the verdict) of rules that serve several classes.
SEVERAL = {
    ("cores", "_CLASSES[view.work]"): set(cores._CLASSES.values()),
    ("device", "verdict"): {"DEVICE_COMPUTE", "DEVICE_MEMBW"},
    ("device_costs", "verdict"): {"CHECKPOINT", "LAUNCH", "LOADING", "SYNC"},
    ("intake", "verdict"): {"DECODE", "SOURCE"},
    ("network", "verdict"): {"DOWNLOAD_LATENCY", "CALLBACK"},
    ("python", "verdict"): {"GIL", "SERIALIZATION"},
}
#: Modules whose rule may give any class; the index explains it.
OF_ANY_CLASS = {"measured"}
#: Modules with the rules of trainings.
OF_TRAINING = (cost, device_costs, loading_costs, memory_costs, rank_costs, step_costs, uneven_shards, verdicts)
#: Rules handed on from one that was looked at already.
HANDED_ON = {"self.rule"}


def text_of(name: str) -> str:
    """Return a page."""
    return (PAGES / f"{name.lower()}.md").read_text(encoding="utf-8")


def rules() -> Iterator[tuple[str, str]]:
    """Return (class, rule) for each rule of the verdict engine, with its thresholds filled in."""
    names = [found.name for found in pkgutil.iter_modules(verdict.__path__) if found.name not in OF_ANY_CLASS]
    several = (importlib.import_module(f"{verdict.__name__}.{name}") for name in names)
    for module in (*several, diagnosis, *OF_TRAINING):
        for call in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("Proposal", "Finding", "Cost"):
                yield from _rule(module, {word.arg or "": word.value for word in call.keywords})


def _rule(module: ModuleType, words: dict[str, ast.expr]) -> list[tuple[str, str]]:
    if ast.unparse(words["rule"]) in HANDED_ON:
        return []
    # A rule is text and constants of its module: nothing of a run.
    rule = eval(compile(ast.Expression(words["rule"]), str(module.__file__), "eval"), vars(module))
    stands = ast.unparse(words["verdict"])
    classes = SEVERAL.get((module.__name__.rpartition(".")[2], stands), {stands.removeprefix("VerdictClass.")})
    return [(name, rule) for name in sorted(classes)]


def quotes(text: str) -> list[str]:
    """Return the quoted paragraphs of a page, without the cause that stands before a rule."""
    found = re.findall(r"(?:^> .*\n)+", text, re.MULTILINE)
    return [re.sub("^`[^`]+`: ", "", " ".join(one.replace("\n>", "\n").lstrip("> ").split())) for one in found]


@pytest.mark.parametrize("name", list(VerdictClass))
def test_every_verdict_has_a_page(name: str) -> None:
    """Named for its class, a sentence first, then the five parts in order, each with something in it; for 80 columns."""
    text = text_of(name)
    assert text.startswith(f"# {name}\n\n")
    assert re.findall("^## (.+)$", text, re.MULTILINE) == PARTS
    assert all(len(part.split()) >= 8 for part in re.split("^## .+$", text, flags=re.MULTILINE))
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)  # commands stay whole
    assert not [line for line in prose.splitlines() if len(line) > 80]


def test_there_is_no_page_without_a_verdict() -> None:
    """Every file is the index or belongs to a class."""
    assert {file.stem for file in PAGES.iterdir()} == {"index", *(name.lower() for name in VerdictClass)}


def test_every_page_is_linked() -> None:
    """From the index and from the navigation of the documentation, to which a hook of MkDocs adds them."""
    index, navigation = text_of("index"), (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in VerdictClass:
        assert f"[{name}]({name.lower()}.md)" in index
        assert f"{name}: explain/{name.lower()}.md" in navigation
    assert "tools/mkdocs_outside.py" in navigation
    assert not (ROOT / "docs" / "explain").exists()


def test_links_between_pages_lead_somewhere() -> None:
    """Pages link to one another alone, by the names of their classes: they are read in a terminal too."""
    for file in PAGES.glob("*.md"):
        for label, target in re.findall(r"\[([^\]]+)\]\(([^)]+)\)", file.read_text(encoding="utf-8")):
            assert target == f"{label.lower()}.md", file.name
            assert (PAGES / target).exists(), file.name


def test_pages_quote_the_rules_of_the_code() -> None:
    """Each rule stands on its class's page word for word, thresholds included, and no page quotes another."""
    expected: dict[str, set[str]] = {name: set() for name in VerdictClass}
    for name, rule in rules():
        expected[name].add(rule)
    assert not [name for name, found in expected.items() if not found]
    for name in VerdictClass:
        quoted = set(quotes(text_of(name)))
        missing = "\n".join(f"> {rule}" for rule in expected[name] - quoted)
        assert not expected[name] - quoted, f"explain/{name.lower()}.md should quote:\n{missing}"
        assert not quoted - expected[name], f"explain/{name.lower()}.md quotes what is no rule (any more)"


def test_the_index_has_the_thresholds_of_the_code() -> None:
    """What is worth gaining and naming, what is alike, and the three kinds of evidence."""
    text = " ".join(text_of("index").split())
    for sentence in (
        f"{ranking.FASTER - 1:.0%} faster",
        f"none gains {ranking.WORTH_GAINING:.0%}",
        f"within {1 - ranking._ALIKE:.0%} of",
        f"less than {proposal.WORTH_NAMING:.0%} of the place's time",
        f"busy (from {agreement._BUSY:.0%})",
        f"by {agreement._GRADIENT:.0%} or more",
        f"at least {agreement._OF_LARGEST:.0%} of",
    ):
        assert sentence.replace("%", " %") in text, sentence


@pytest.mark.parametrize("name", list(VerdictClass))
def test_worked_examples_show_their_verdict(name: str) -> None:
    """A page has the commands that show its verdict, or says why there are none; what was printed begins with its class."""
    text = text_of(name).partition("## A worked example\n")[2]
    commands = re.findall(r"\$ python -m benchmarks\.faults \S+ .*\n\$ headrace diagnose \S+\n([A-Z_0-9]*)", text)
    assert commands or "Not run" in text
    assert set(commands) <= {name, ""}
