"""The result of `benchmarks.scale` as Markdown: only what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.scale_fleet import describe as describe_fleet

_RATES = {
    "supervise": "a queue, `--supervise 2`",
    "on_ray": "a queue, `--on ray --workers 2`",
    "on_ray_from_files": "a folder, `--on ray --workers 2`",
    "ray_data": "Ray Data, fused into two actors, the better of two sizes of batches",
}
_MODEL_RATES = {
    "on_ray": "a folder, `--on ray --workers 2`, decoded at scale",
    "ray_data_fused": "Ray Data, fused into two actors, the better of two sizes of batches",
    "ray_data_operators": "Ray Data, a chain of operators: tasks that decode, an actor with the model; the same",
}


def describe(found: Mapping[str, Any], words: Sequence[str]) -> str:
    """Return the document of a command of these words."""
    lines = [
        "# Beyond one process: Ray, portions and predictions",
        "",
        f"`{' '.join(['python -m benchmarks.scale', *words])}`. Rates are items a second from the first result to the",
        "last, of turns in which each design ran once.",
    ]
    ray = found["ray"]
    if "rates" in ray:
        lines += ["", "## Photographs decoded and made small, no model", "", *_table(_RATES, ray)]
        lines += [
            f"- On Ray beside `--supervise`: {ray['share_of_supervise']:.2f} (goal: at least 0.97).",
            f"- First result at most {ray['first_result_seconds']:.2f} s after the workers were there (goal: 1 s).",
            f"- Beside Ray Data's fused program: {ray['ratio_ray_data']:.2f}.",
        ]
    if model := ray.get("model"):
        lines += ["", "## Photographs classified by a MobileNetV2-like model", "", *_table(_MODEL_RATES, model)]
        lines += [
            f"- Beside Ray Data's chain of operators, as in its documentation: {model['ratio_operators']:.2f} (goal: 2).",
            f"- Beside its fused program: {model['ratio_fused']:.2f}.",
        ]
    lines += ["", "## Counts", "", *_counts(found)]
    return "\n".join(lines)


def _table(names: Mapping[str, str], found: Mapping[str, Any]) -> Iterator[str]:
    turns = found["turns"]
    yield "| design | " + " | ".join(f"turn {number + 1}" for number in range(len(turns))) + " | median |"
    yield "|---|" + "---|" * (len(turns) + 1)
    for name, words in names.items():
        yield f"| {words} | " + " | ".join(f"{turn[name]:.0f}" for turn in turns) + f" | {found['rates'][name]:.0f} |"
    yield ""


def _counts(found: Mapping[str, Any]) -> Iterator[str]:
    ray = found["ray"]
    if data := ray.get("dataset"):
        rest = (
            "exactly those had no result"
            if data["exactly_those"] and data["right"]
            else "others had none, or a wrong one"
        )
        rows, poisoned = f"{data['rows']:,} rows", data["poisoned"]
        yield f"- A Dataset of {rows}, {poisoned} of them poisoned: {data['rows_out']:,} came out, and {rest}."
    if ray["kills"] is not None:
        yield (
            f"- {ray['kills']} kills of workers and {ray['raylets']} of nodes on Ray: {ray['lost']} items lost (0),"
            f" {ray['repeated']} repeated (0)."
        )
    if shards := found["shards"]:
        yield (
            f"- {shards['portions']} portions of an array job, killed {shards['kills']} times and begun again:"
            f" {shards['lost']} items lost (0), {shards['repeated']} repeated (0)."
        )
    if (error := found["prediction"]["max_error"]) is not None:
        yield f"- `headrace capacity --machines` beside pinned processes: at most {error:.1%} off (8)."
    for name, one in (found["autoscaling"].get("loads") or {}).items():
        over, cut_off = one["over_oracle"], one["cut_off"]
        yield f"- Autoscaling, simulated, {name}: {over:+.1%} over an oracle (10), {cut_off} cut off (0)."
    if found["fleet"]:
        yield from ["", *describe_fleet(found["fleet"]).splitlines()[2:]]
