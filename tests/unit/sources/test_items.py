"""Values in memory as a source, and what a notebook shows of the run."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.base.errors import SettingsError, SourceError


class Sums(hr.Module):
    """Sums each array of a batch."""

    input = hr.ArrayInput()

    def process(self, batch: Any) -> list[float]:
        """Return one sum for each."""
        return [float(np.sum(one)) for one in batch]


def summed(values: Iterable[Any]) -> dict[str, float]:
    """Run over values and return {id: sum}."""
    pipeline = hr.Pipeline(hr.items(values), module=Sums(), delivery=hr.collect())
    hr.run(pipeline)
    assert isinstance(pipeline.delivery, hr.collect)
    return dict(pipeline.delivery.results)


def test_lists_arrays_and_iterators_give_one_job_per_value() -> None:
    """Ids are the numbers from 0."""
    rows = np.arange(12).reshape(4, 3)
    sums = {"0": 3.0, "1": 12.0, "2": 21.0, "3": 30.0}
    assert summed(rows) == summed(list(rows)) == summed(iter(rows)) == sums


def test_a_list_serves_many_runs_and_an_iterator_one() -> None:
    """The second run over an iterator would find nothing, and says so."""
    pipeline = hr.Pipeline(hr.items([1, 2]), module=Sums())
    assert [hr.run(pipeline).counters.delivered for _ in range(2)] == [2, 2]
    once = hr.Pipeline(hr.items(iter([1, 2])), module=Sums())
    assert hr.run(once).counters.delivered == 2
    with pytest.raises(SourceError, match="read by an earlier run"):
        hr.run(once)


@pytest.mark.parametrize("value", ["text", b"bytes", {"a": 1}, 7])
def test_a_single_value_is_refused(value: Any) -> None:
    """It is probably one item, and its letters are none."""
    with pytest.raises(SettingsError, match=r"such as \[value\]"):
        hr.items(value)


def test_a_notebook_shows_counts_and_table() -> None:
    """The repr is one line, the HTML is the summary, with what strangers wrote escaped."""
    result = hr.run(hr.Pipeline(hr.items([1, 2]), module=Sums()))
    assert repr(result) == f"<Result of {result.plan_id}: 2 received, 2 delivered>"
    shown = result._repr_html_()
    assert "process" in html.unescape(shown)
    assert shown.startswith("<pre>")


def test_a_plan_is_one_line() -> None:
    """Settings that are not the default, and how many more there are."""
    assert repr(hr.Plan()) == f"<Plan {hr.Plan().plan_id}: defaults>"
    plan = hr.Plan().with_settings(["process.batch=8", "run.ordered=true"])
    assert "stages.process.batch=8" in repr(plan)
    assert "run.ordered=True" in repr(plan)
    resolved = hr.run(hr.Pipeline(hr.items([1]), module=Sums())).plan
    assert " more>" in repr(resolved)
    assert len(repr(resolved)) < 400


def test_the_guide_of_notebooks_runs() -> None:
    """Its cells, one after the other, with every image's brightness at the end."""
    guide = Path(__file__).parents[3] / "docs" / "guides" / "notebooks.md"
    cells = re.findall(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in cells:
        exec(cell, names)
    images = names["images"]
    assert names["by_image"] == pytest.approx({number: image.mean() for number, image in enumerate(images)})


class Shouts(hr.Module):
    """Returns texts in capitals."""

    input = hr.TextInput()

    def process(self, batch: Any) -> list[str]:
        """Return one text for each."""
        return [one.upper() for one in batch]


def test_texts_are_items() -> None:
    """Where the program says so, whatever they look like."""
    texts = ["one", "https://example.com/a b", "", "züri: ja"]
    pipeline = hr.Pipeline(hr.items(texts, texts=True), module=Shouts(), delivery=hr.collect())
    hr.run(pipeline)
    assert isinstance(pipeline.delivery, hr.collect)
    assert dict(pipeline.delivery.results) == {str(number): text.upper() for number, text in enumerate(texts)}
