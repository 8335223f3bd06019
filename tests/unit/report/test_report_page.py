"""The page as a whole: what it says, and that nothing from a run can break out of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from importlib.resources import files
from types import ModuleType
from typing import Any

import msgspec
import pytest

from headrace.report.page import render_report
from headrace.report.sections.environment import plan_text
from headrace.runs.formats.profile import Estimate, PlanAccount, PlanStage, Point, ProfileDocument, Quantile

HOSTILE = "</script></title></style><img src=x onerror=alert(1)>'\"&\x00\u202e"
#: Measured figures that a table of the page shows, by what is looked at.
SHOWN = {
    "stages": ("items", "failed", "cpu", "run_delay", "cpu_demand", "utilization", "bytes_in", "queue_depth_mean"),
    "streams": ("answered_per_second", "age_p99_seconds", "jitter_p50_seconds", "stalled_seconds", "connections"),
    "layers": ("seconds", "flops", "num_bytes", "intensity", "of_ceiling"),
}


def test_the_page_begins_with_the_verdict_and_the_figures(
    documents: ModuleType, read_page: Callable[[str], Any]
) -> None:
    """Trust, throughput, percentiles, duration, Plan and the emulated device come before anything else."""
    page = read_page(render_report(documents.full_document()))
    top = page.text[: page.text.index("Checks")]
    for told in (
        "TRUSTED",
        "28.4/s",
        "417 ms",
        "713 ms",
        "1.51 s",
        "42.7 s",
        "The device was emulated",
        "headrace.demo.scenes",
    ):
        assert told in top
    assert "UNTRUSTED" not in page.text


def test_an_untrusted_run_says_why_at_the_top(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """In words, not in colour alone."""
    document = msgspec.structs.replace(
        documents.full_document(),
        trusted=False,
        distrust=("littles_law: 13 is not 29; ...", "lost_spans: 12 were lost"),
    )
    page = read_page(render_report(document))
    assert page.text.index("UNTRUSTED") < page.text.index("littles_law: 13") < page.text.index("lost_spans") < 600


def test_a_comparison_is_told_once(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """What the document itself says of pairs and budget is not said again in other words; the margin is added."""
    comparison = msgspec.structs.replace(
        documents.comparison_document(),
        says=("B is worse.", "The loss is beyond the budget of 3.0%.", "24 pairs of blocks of 100 items, run in turn."),
        budget=0.03,
    )
    text = read_page(render_report(documents.full_document(), comparison)).text
    assert text.count("pairs of blocks of") == 1
    assert "Largest loss accepted" not in text
    assert "count as none" in text


def test_a_comparison_of_another_pipeline_is_marked(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """Whoever adds the wrong file is told on the page, which others will read; the right one has no mark."""
    document, comparison = documents.full_document(), documents.comparison_document()
    own = {stage.name: 0.1 for stage in document.stages}
    sides = {name: msgspec.structs.replace(getattr(comparison, name), stages=own) for name in ("a", "b")}
    assert (
        "another pipeline" not in read_page(render_report(document, msgspec.structs.replace(comparison, **sides))).text
    )
    sides = {name: msgspec.structs.replace(getattr(comparison, name), stages={"spin": 0.1}) for name in ("a", "b")}
    assert "another pipeline" in read_page(render_report(document, msgspec.structs.replace(comparison, **sides))).text


def test_a_run_too_short_to_tell_is_not_called_steady(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """Where no window was looked for the page says so, and the slowest of all items is called that."""
    document = documents.full_document()
    window = msgspec.structs.replace(
        document.window, from_seconds=0.0, is_steady=None, says="too short to find a warm-up"
    )
    slowest = msgspec.structs.replace(document.slow_item, percentile=100.0)
    page = read_page(render_report(msgspec.structs.replace(document, window=window, slow_item=slowest)))
    assert "Nothing is shaded: too short to find a warm-up" in page.text
    assert "steady from the start" not in page.text
    assert "the longest of all" in page.text


def test_every_part_is_there_and_its_contents_lead_to_it(
    documents: ModuleType, read_page: Callable[[str], Any]
) -> None:
    """All sections have a link, each link a section; every chart has its place."""
    page = read_page(
        render_report(
            documents.full_document(), documents.comparison_document(), diagnosed=documents.diagnosis_document()
        )
    )
    anchors = [section["id"] for section in page.named("section")]
    assert anchors == [
        "diagnosis", "comparison", "stages", "streams", "latency", "over-time", "resources", "batches", "slow-item", "cpu",
        "isolation", "layers", "hot-spots", "checks", "environment", "not-measured",
    ]  # fmt: skip
    links = {link["href"] for link in page.named("a")}
    assert {f"#{anchor}" for anchor in anchors} <= links
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    specs = json.loads(page.scripts[0])
    assert {spec["id"] for spec in specs} == {
        found["id"] for found in page.named("div") if found.get("class") == "chart"
    }


def test_tables_hold_the_numbers_of_the_document(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """Exactly, beside the rounded ones: stages, layers, latency, batches, CPU, series, path, isolation, comparison."""
    document, comparison = documents.full_document(), documents.comparison_document()
    values = set(read_page(render_report(document, comparison)).values)
    expected = {document.throughput, document.elapsed_seconds, document.cpu.total_seconds, document.cpu.explained_share}
    runtime = document.runtime
    expected |= {runtime.seconds_per_item, runtime.share, runtime.core_share, runtime.voluntary_switches_per_item}
    expected |= {getattr(stage, field) for stage in document.stages for field in SHOWN["stages"]}
    expected |= {stage.service.mean for stage in document.stages} | {stage.queue_wait.mean for stage in document.stages}
    expected |= {
        getattr(stage.blocked_split, wait) for stage in document.stages for wait in ("gil", "network", "unknown")
    }
    expected |= {getattr(layer, field) for layer in document.layers.layers for field in SHOWN["layers"]}
    expected |= {quantile.value for quantile in document.latency.percentiles} | set(document.latency.bin_edges)
    expected |= {line.seconds for line in document.cpu.lines}
    expected |= {number for series in document.series for number in (series.mean, series.maximum)}
    expected |= {getattr(stream, field) for stream in document.streams for field in SHOWN["streams"]}
    expected |= {span.ended - span.started for span in document.slow_item.spans}
    expected |= {point.throughput for stage in document.isolation.stages for point in stage.curve}
    expected |= {*comparison.a.values, *comparison.b.values, comparison.ratio, *comparison.a.stages.values()}
    assert not {value for value in expected if value is not None} - values


def test_no_text_of_a_run_becomes_markup(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """With hostile text in every field the page has the same elements as with harmless text, and no others."""
    document = documents.with_text(documents.full_document(), HOSTILE)
    comparison = documents.with_text(documents.comparison_document(), HOSTILE)
    diagnosed = documents.with_text(documents.diagnosis_document(), HOSTILE)
    page = read_page(render_report(document, comparison, diagnosed=diagnosed, folder=HOSTILE))
    harmless = read_page(
        render_report(
            documents.with_text(documents.full_document(), "x" * len(HOSTILE)),
            documents.with_text(documents.comparison_document(), "x" * len(HOSTILE)),
            diagnosed=documents.with_text(documents.diagnosis_document(), "x" * len(HOSTILE)),
        )
    )
    assert [name for name, _ in page.tags] == [name for name, _ in harmless.tags]
    assert not page.named("img")
    assert len(page.scripts) == 3
    assert all(not name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert json.loads(page.scripts[0])
    assert "onerror=alert" in page.text


@pytest.mark.parametrize("file", ["javascript:alert(1)", "//elsewhere/x", "../../etc/passwd", "a b?c#d"])
def test_links_lead_only_to_files(file: str, documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """A file's name cannot become a script, another server or a query."""
    document = msgspec.structs.replace(documents.full_document(), hot_spots={"decode": file})
    href = next(
        link["href"]
        for link in read_page(render_report(document)).named("a")
        if "decode" in str(link) or link.get("rel")
    )
    assert href.startswith("./")
    assert not set("?#: ") & set(href)


def test_the_policy_allows_these_scripts_and_nothing_else(
    documents: ModuleType, read_page: Callable[[str], Any]
) -> None:
    """Nothing is loaded; what runs is named by the hash of its content; no element has a style or handler of its own."""
    page = read_page(render_report(documents.full_document()))
    policy = next(meta["content"] for meta in page.named("meta") if meta.get("http-equiv"))
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [digest(script) for script in page.scripts[1:]]
    assert rules["style-src"] == digest(page.style)
    assert not [attributes for _, attributes in page.tags if "style" in attributes]
    assert not [
        attributes for name, attributes in page.tags if name in ("link", "img", "iframe") or "src" in attributes
    ]


def test_a_run_without_profile_says_how_to_get_one(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """What is missing is named, with the command; percentiles that may not be quoted say what they need."""
    document = documents.bare_document()
    page = read_page(render_report(document))
    assert f"headrace profile headrace.demo.scenes:pipeline -o {document.run}-profiled" in page.text
    assert f"headrace report {document.run}-profiled" in page.text
    assert "needs 662 samples" in page.text
    assert "--isolate" in page.text
    anchors = {section["id"] for section in page.named("section")}
    assert {"stages", "latency", "checks", "environment", "not-measured"} <= anchors
    assert not {"resources", "cpu", "layers", "isolation", "slow-item", "batches", "comparison"} & anchors


def test_a_run_in_which_nothing_was_measured_gives_a_page(
    documents: ModuleType, read_page: Callable[[str], Any]
) -> None:
    """No stages, no items, no numbers: still a page that says so."""
    bare = documents.bare_document()
    empty = msgspec.structs.replace(
        bare,
        stages=(),
        latency=msgspec.structs.replace(bare.latency, num_samples=0, mean=None),
        problems=("no folder spans",),
    )
    page = read_page(render_report(empty))
    assert "no folder spans" in page.text
    assert json.loads(page.scripts[0]) == []


def test_numbers_that_are_none_are_not_drawn(documents: ModuleType) -> None:
    """NaN and infinity anywhere do not break the page and are never shown as numbers."""
    full = documents.full_document()
    odd = msgspec.structs.replace(
        full,
        throughput=float("nan"),
        latency=msgspec.structs.replace(full.latency, mean=float("inf"), percentiles=(Quantile(50, float("nan"), 11),)),
        series=tuple(
            msgspec.structs.replace(one, points=(Point(0.0, float("nan")), Point(1.0, 2.0))) for one in full.series
        ),
        memory_growth=msgspec.structs.replace(
            full.memory_growth, bytes_per_1000_items=Estimate(float("-inf"), 0.0, float("nan"))
        ),
    )
    made = render_report(odd)
    assert not re.search(r">[^<]*\b(nan|inf)\b[^<]*</(td|dd|data)>", made)


def test_a_large_run_gives_a_small_page(documents: ModuleType) -> None:
    """128 cores, 3,000 layers, an item in 12,000 passages and full series: below 1.5 MB."""
    document = documents.full_document(num_cores=128, num_layers=3000)
    parts = msgspec.structs.replace(document.slow_item, spans=2000 * document.slow_item.spans)
    document = msgspec.structs.replace(document, slow_item=parts)
    assert len(render_report(document, documents.comparison_document()).encode()) < 1_500_000


def test_the_plan_is_toml_or_what_it_was(documents: ModuleType) -> None:
    """A Plan of this headrace is TOML that it reads back; one that it does not know is shown as JSON."""
    document: ProfileDocument = documents.full_document()
    assert "[stages.fetch]\nworkers = 16" in plan_text(document.plan)
    assert json.loads(plan_text({"version": 99, "odd": None})) == {"version": 99, "odd": None}


def test_the_same_document_gives_the_same_page(documents: ModuleType) -> None:
    """No clock and no chance in it: two reports can be compared."""
    assert render_report(documents.full_document()) == render_report(documents.full_document())


def test_the_chart_library_brings_its_licences() -> None:
    """The built file names what it is made of, ends no script element, and its licences lie beside it."""
    assets = files("headrace.report") / "assets"
    library = (assets / "charts.min.js").read_text(encoding="utf-8")
    assert len(library) < 700_000
    assert library.isascii()
    assert not re.search("</script|<!--", library, re.IGNORECASE)
    assert (assets / "LICENSE-zrender.txt").read_text(encoding="utf-8") in library
    assert "Apache License 2.0" in library
    for name in ("LICENSE-echarts.txt", "LICENSE-d3.txt", "NOTICE-echarts.txt"):
        assert (assets / name).is_file()


def test_both_plans_of_a_canary_are_shown(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """Each with its share of what was done; one alone without."""
    document = documents.full_document()
    both = msgspec.structs.replace(document, plan_shares={document.plan_id: 0.9, "feedc0ffee00": 0.1})
    top = read_page(render_report(both)).text
    assert f"Plan {document.plan_id}, 90% of the passages" in top
    assert "Plan feedc0ffee00, 10% of the passages" in top
    assert "of the passages" not in read_page(render_report(document)).text


def test_the_plans_of_a_run_stand_side_by_side(documents: ModuleType, read_page: Callable[[str], Any]) -> None:
    """With their stages, and the command that compares them; a run of one Plan has no such section."""
    document = documents.full_document()
    accounts = tuple(
        PlanAccount(
            plan_id=plan_id, share=share, delivered=delivered, failed=failed, latency=document.latency,
            stages={"process": PlanStage(service=0.0123, mean_batch=3.5)},
        )
        for plan_id, share, delivered, failed in (("56b56dbd93e3", 0.9, 900, 0), ("78f5f184d5c8", 0.1, 100, 7))
    )  # fmt: skip
    text = read_page(render_report(msgspec.structs.replace(document, plan_accounts=accounts))).text
    assert f"{document.run}@56b56dbd93e3 {document.run}@78f5f184d5c8 --metric latency" in text
    assert "12.3 ms" in text
    assert "Plan by Plan" in text
    assert "Plan by Plan" not in read_page(render_report(document)).text
