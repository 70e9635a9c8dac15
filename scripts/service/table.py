"""The results of run.py as a table: for a terminal, and for a page of the docs."""

import re
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- planted causes: made by scripts/service/run.py --page; do not edit -->", "<!-- end of planted causes -->"
NAMED = ("cause", "what", "line")
TITLES = (
    "cause",
    "calls: names",
    "--by wait",
    "--by request",
    "after",
    "--sample: names",
    "after",
    "py-spy dump: line",
    "in its locals",
    "after",
    "VizTracer",
)


def _named(found: dict[str, Any] | None) -> str:
    """What a first finding names."""
    if found is None:
        return "-"
    names = ["cause" if found["cause"] else "", "object" if found["what"] else "", found["line"]]
    return ", ".join(name for name in names if name) or "none"


def _seconds(found: dict[str, Any] | None) -> str:
    return "-" if found is None or found["seconds"] is None else f"{found['seconds']:.1f} s"


def _yes(found: dict[str, Any] | None, key: str) -> str:
    return "-" if found is None else "yes" if found[key] else "no"


def rows_of(results: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One row of TITLES for each result of run.tried."""
    out = []
    for each in results:
        exact, sampled, dumped, traced = (each.get(way) for way in ("exact", "sampled", "py-spy", "viztracer"))
        row = (each["cause"], _named(exact), _yes(exact, "by_wait"), _yes(exact, "by_request"), _seconds(exact), _named(sampled), _seconds(sampled))
        row += (_yes(dumped, "line"), _yes(dumped, "what"), _seconds(dumped))
        out.append((*row, "-" if traced is None else traced.get("first") or "nothing"))
    return out


def counted(results: list[dict[str, Any]], way: str) -> str:
    """In how many a first finding named all."""
    some = [each[way] for each in results if way in each]
    return f"{sum(all(found[name] for name in NAMED) for found in some)} of {len(some)}"


def write_table(results: list[dict[str, Any]]) -> None:
    rows = [TITLES, *rows_of(results)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(TITLES))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for way in ("exact", "sampled"):
        print(f"{way}: the first finding names cause, object and line of {counted(results, way)}")


def write_page(page: Path, results: list[dict[str, Any]], busy: list[dict[str, Any]]) -> None:
    """Write the table between the marks of a page, with what was said first; `busy`: beside other processes."""
    lines = ["| " + " | ".join(row) + " |" for row in (TITLES, ("---",) * len(TITLES), *rows_of(results))]
    summary = [f"First findings that name cause, object and line: {counted(results, 'exact')} of calls, {counted(results, 'sampled')} of samples."]
    if busy:
        lines += [
            "",
            f"Beside {busy[0]['busy']} processes that compute, of {counted(busy, 'exact')}:",
            "",
            "| " + " | ".join(TITLES) + " |",
            "|" + "---|" * len(TITLES),
            *("| " + " | ".join(row) + " |" for row in rows_of(busy)),
            "",
            "What was said first beside them, where it lacks one of the three:",
            "",
            *(f"* {each['cause']}: {each['exact']['first']}" for each in busy if "exact" in each and not all(each["exact"][name] for name in NAMED)),
        ]
    said = [f"* {each['cause']}: {each['exact']['first']}" for each in results if each.get("exact")]
    text = "\n".join([BEGIN, "", *summary, "", *lines, "", "What was said first:", "", *said, "", END])
    text = re.sub(r"/tmp/pytrace-service-[^/]*|/\S*/scripts/service/programs/", lambda found: "FOLDER" if "-service-" in found[0] else "", text)
    before, mark, rest = page.read_text().partition(BEGIN)
    assert mark, f"{page} has no {BEGIN}"
    page.write_text(before + re.sub(f"^.*?{re.escape(END)}", lambda _: text, rest, count=1, flags=re.DOTALL))
