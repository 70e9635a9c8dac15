"""Generated documents are what their generator would write now, and pictures what a terminal shows."""

import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytrace_ebpf.cli.main import parser
from pytrace_ebpf.trace.schema import TABLES
from pytrace_ebpf.view.by import BY
from tests.unit.synthetic import sample

REPOSITORY = Path(__file__).parents[3]


def test_the_format_document_is_the_schema() -> None:
    subprocess.run([sys.executable, "scripts/generate_docs.py", "--check"], cwd=REPOSITORY, check=True)


def test_what_a_command_shows_is_drawn_whole(tmp_path: Path) -> None:
    picture = tmp_path / "report.svg"
    words = [
        str(REPOSITORY / "scripts" / "picture.py"),
        str(picture),
        "--columns",
        "80",
        "--rows",
        "17",
        "--",
        "report",
        str(sample(tmp_path / "trace")),
    ]
    subprocess.run([sys.executable, *words], check=True, env={**os.environ, "COLUMNS": "20", "NO_COLOR": "1"})
    drawn = texts(picture)
    assert drawn[0].startswith("$ pytrace-ebpf report") and len(drawn) == 17 and max(map(len, drawn)) <= 80
    assert "██ on CPU" in drawn[-1] and "fill: #009e73" in picture.read_text()


def test_the_picture_of_the_readme_is_small_and_needs_nothing_from_elsewhere() -> None:
    picture = REPOSITORY / "docs" / "report.svg"
    assert picture.stat().st_size < 200_000 and picture.read_text().count("http") == 1  # the name of SVG itself
    assert any("Functions by self time" in line for line in texts(picture))


def test_the_page_on_reports_says_which_question_each_kind_answers() -> None:
    page = (REPOSITORY / "docs" / "reading-a-report.md").read_text()
    table = page.split("## Which report answers what")[1].split("##")[0]
    assert set(re.findall(r"--by (\w+)", table)) == set(BY)


def test_the_page_on_architecture_names_every_package_and_no_file_that_is_not_there() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    drawn = page.split("<!-- end of imports -->")[0]
    packages = {path.parent.name for path in (REPOSITORY / "pytrace_ebpf").glob("*/__init__.py")}
    assert packages and all(re.search(rf"^    {package} .*[●·]", drawn, re.MULTILINE) and f"{package}/`" in page for package in packages)
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]*\*?(?:\.[a-z]+)?)`", page))
    folders = ("probes", "pytrace_ebpf", "scripts", "tests")
    paths = {f"/{path.relative_to(REPOSITORY)}" for folder in folders for path in (REPOSITORY / folder).rglob("*")} | {
        f"/{path.name}" for path in REPOSITORY.iterdir()
    }
    there = [any(fnmatch(path, f"*/{name.rstrip('/')}") for path in paths) for name in named]
    assert len(named) > 30 and all(there), [name for name, is_there in zip(named, there, strict=True) if not is_there]


def test_what_imports_in_a_circle_is_not_drawn_but_refused() -> None:
    sys.path.insert(0, str(REPOSITORY / "scripts"))
    try:
        from generate_docs import in_order  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    assert in_order({"c": {"a", "b"}, "b": {"a"}, "a": set()}) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="import each other: a, b"):
        in_order({"c": set(), "b": {"a"}, "a": {"b", "c"}})


def test_each_test_that_the_page_on_security_names_is_there() -> None:
    named = set(re.findall(r"\btest_\w+(?!\.py)\b", (REPOSITORY / "docs" / "security.md").read_text()))
    sources = [path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py")]
    there = {name for source in sources for name in re.findall(r"def (test_\w+)", source)} | {
        path.stem for path in (REPOSITORY / "tests").rglob("test_*.py")
    }
    assert len(named) > 50 and not named - there


@pytest.mark.parametrize(
    "page", ["README.md", "docs/quick-start.md", *(f"docs/how-to/{path.name}" for path in (REPOSITORY / "docs" / "how-to").glob("*.md"))]
)
def test_the_commands_of_a_page_are_what_the_parser_knows(page: str) -> None:
    said = re.findall(r"(?:^    |^)(?:\$ )?(?:sudo )?pytrace-ebpf ([^#\n]+)", (REPOSITORY / page).read_text(), re.MULTILINE)
    assert said
    for words in said:
        parser().parse_args(shlex.split(words.replace(" PID", " 1")))


def test_every_column_has_its_place_on_the_page_of_columns() -> None:
    headings = re.findall(r"^## `(\w+)`$", (REPOSITORY / "docs" / "columns.md").read_text(), re.MULTILINE)
    assert headings == sorted({column.name for table in TABLES.values() for column in table.columns})


def texts(picture: Path) -> list[str]:
    """The lines of text in it, from above, as far as they are not empty."""
    lines: dict[float, str] = {}
    for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text"):
        lines[float(text.get("y", "0"))] = lines.get(float(text.get("y", "0")), "") + "".join(text.itertext()).strip("\n")
    return [lines[y].replace("\xa0", " ").rstrip() for y in sorted(lines) if lines[y].strip("\xa0 ")]
