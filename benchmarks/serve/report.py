"""The benchmark's result for readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TITLES = {
    "emulated": "Emulated device, 2 + 0.2 n ms; bodies of 12.8 KB",
    "real": "MobileNetV2-like on the CPU; JPEGs of 127 KB, decoded by every server",
}


_SENT = (
    "Sent is what is offered while one of the client's 1,000 connections is free; what finds none is not sent. Refusals are "
    "timed three times: by the client from its send; by the server since its loop knew of them, and since their head was read."
)


def as_text(result: Mapping[str, Any]) -> str:
    """Return Markdown."""
    lines = [
        "# Serving",
        "",
        "Each part was measured by itself; figures of several rounds are medians:",
        "",
        *(
            f"- {part}, {one['at']}: {_rounds(one, part in result['peers'])}others took {one['foreign_cores']:.2f} cores"
            for part, one in result["measured"].items()
        ),
    ]
    if "front_us" in result:
        costs = ", ".join(f"{name} {cost:.1f} us" for name, cost in result["front_us"].items())
        lines += ["", f"CPU of the front per request, hand-over and answer included: {costs}."]
    for part, rows in result["peers"].items():
        lines += ["", f"## {_TITLES[part]}", "", *_table(rows), *_said(result[part])]
    for part in ("overload", "overload_slow"):
        if part in result:
            lines += ["", *_overload(result[part])]
    if "hostile" in result:
        lines += ["", *_hostile(result["hostile"])]
    if "mutated" in result:
        lines += ["", *_mutated(result["mutated"])]
    if rows := result.get("crosscheck", {}).get("rows"):
        lines += ["", *_crosschecked(rows)]
    if result.get("canary", {}).get("runs"):
        lines += [
            "",
            f"Canary: {result['canary']['false_rollbacks']} of {result['canary']['runs']} identical ones rolled back.",
        ]
    for key, what in {"restart": "requests", "restart_grpc": "calls of gRPC"}.items():
        if part := result.get(key):
            failed = f"{part['failures']} of {part['requests']:,} {what} failed during {part['restarts']} restarts"
            lines += ["", f"Rolling restarts of {part['workers']} workers: {failed}, at {part['rate']:.0f}/s."]
    return "\n".join(lines)


def _rounds(one: Mapping[str, Any], has_peers: bool) -> str:
    tuned = "" if one.get("tuned", True) else "peers with the first settings of their grids; "
    seconds = f" of {one['seconds']:g} s" if one.get("seconds") else ""
    return f"{one['rounds']} rounds in turn{seconds}; {tuned}" if has_peers else ""


def _table(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    lines = [
        "| server | load | answers/s [range] | p50, ms | p99, ms | CPU per request, us | switches | not answered |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for name, loads in rows.items():
        for load, row in loads.items():
            low, high = row["rate_range"]
            cost = f"{row['server_cpu_us']:.0f} | {row['server_switches']:.2f} | {row['not_answered']}"
            rate = f"{row['rate']:.0f} [{low:.0f}-{high:.0f}]"
            lines.append(f"| {name} | {load} | {rate} | {row['p50_ms']:.2f} | {row['p99_ms']:.2f} | {cost} |")
    return lines


def _said(part: Mapping[str, Any]) -> list[str]:
    lines = [""]
    if part["best_peer"]:
        lines.append(
            f"- rate under 64 connections over {part['best_peer']}'s: {_ratio(part['ratio'])}; p99 {_ratio(part['p99_ratio'])}"
        )
        if part["usual_decode"]["peer"] != part["best_peer"]:
            lines.append(
                f"- over {part['usual_decode']['peer']}'s, which decodes as most code does: {_ratio(part['usual_decode'])}"
            )
    if "limit_share" in part:
        lines.append(f"- share of the device's limit: {part['limit_share']:.1%}")
    if part.get("open_loop"):
        opened = part["open_loop"]
        lines.append(
            f"- open loop, {opened['rate']:.0f}/s: p99 over {opened['ratio']['peer']}'s {_ratio(opened['ratio'])}"
        )
        lines += ["", *_table(opened["rows"])]
    lines += [f"- {name}: {settings}" for name, settings in part["settings"].items() if settings]
    return [*lines, *(f"- {name} did not run: {why}" for name, why in part["not_run"].items())]


def _ratio(one: Mapping[str, Any]) -> str:
    return f"x{one['value']:.2f} [{one['low']:.2f}-{one['high']:.2f}]"


def _overload(part: Mapping[str, Any]) -> list[str]:
    seconds = next(iter(part["rows"].values()))["seconds"]
    lines = [f"## Overload: {part['title']}, for {seconds:.0f} s each", ""]
    refused = "refused after, p99 ms: sent | seen | head read"
    lines += [
        f"| | offered/s | sent/s | in time/s | of the peak | p99, ms | {refused} | computed for nobody | statuses |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in part["rows"].items():
        numbers = [f"{row[rate]:.0f}" for rate in ("offered", "sent", "goodput")]
        numbers += [f"{row['goodput_share']:.1%}", _number(row["p99_ms"]), _number(row["refused_p99_ms"])]
        numbers += [_number(row["refused_by_server"][since]["p99_ms"], 2) for since in ("seen", "read")]
        lines.append(
            f"| {name} | {' | '.join(numbers)} | {row['computed_for_nobody']} of {row['computed']} | {row['statuses']} |"
        )
    return [*lines, "", _SENT]


def _hostile(part: Mapping[str, Any]) -> list[str]:
    vanished, slow, flood = part["vanished"], part["slow"], part["flood"]
    alone, beside = (_number(p99) for p99 in slow["good_p99_ms"])
    there = f"{slow['idle']} idle and {slow['dripping']} dripping connections"
    closed = f"closed after {_number(slow['closed_after_s'])} s, {slow['still_open']} still open"
    served = f"{vanished['good_requests']} good requests afterwards {vanished['unanswered']} got no answer"
    then = f"of {flood['good_requests']} good requests afterwards {flood['unanswered']} got no answer"
    return [
        "## Clients that behave badly",
        "",
        f"- {vanished['vanished']} vanished in flight; of {served}",
        f"- {there}: {closed}; p99 of good clients {alone} -> {beside} ms; +{slow['memory_mb']:.0f} MB",
        f"- of {slow['good_requests']} good requests beside them {slow['unanswered']} got no answer",
        f"- {flood['sent_mb']:.1f} MB of requests taken from one who reads no answer: +{flood['memory_mb']:.1f} MB; {then}",
        f"- crashes: {part['crashes']}",
    ]


def _crosschecked(rows: Mapping[str, Any]) -> list[str]:
    lines = [
        "## The emulated device by perf_analyzer, and by our client with the same requests",
        "",
        "| load | answers/s | p50, ms | p99, ms |",
        "|---|---|---|---|",
    ]
    for name, row in rows.items():
        cells = [f"{row['theirs'][key]:.1f}, ours x{row['ratios'][key]:.2f}" for key in ("rate", "p50_ms", "p99_ms")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _mutated(part: Mapping[str, Any]) -> list[str]:
    kinds = ", ".join(f"{kind} ({number})" for kind, number in part["unreviewed"].items()) or "none"
    return [
        (
            f"{part['cases']:,} damaged requests, read beside aiohttp's strict parser: {part['differences']:,} differences of "
            f"{part['kinds']} kinds, of which not in the reviewed list: {kinds}. {part['over_sockets']:,} of them were sent, "
            f"each over a connection: {part['internal_errors']} met an error of the front, and {part['good_between']:,} "
            "good requests between them were all answered."
        )
    ]


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
