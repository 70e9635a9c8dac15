"""Every figure of README and the docs has a command that shows it."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def doc_figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("doc_figures", REPOSITORY / "scripts" / "doc_figures.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_section_with_figures_has_a_command_that_is_there(doc_figures: ModuleType) -> None:
    found = list(doc_figures.sections())
    assert len(found) > 100
    assert not [(each.page, each.heading, each.figures) for each in found if not each.commands], "name the command in the section, or in SHOWN"
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for each in found:
        for command in each.commands:
            for script in re.findall(r"scripts/[\w/]+\.(?:py|sh)", command):
                assert (REPOSITORY / script).is_file(), each
            for target in re.findall(r"^make ([a-z-]+)", command):
                assert target in targets, each


def test_the_list_has_nothing_that_no_page_has(doc_figures: ModuleType) -> None:
    found = [each for each in doc_figures.sections() if not each.own]
    used = {(each.page, each.heading) for each in found} | {(each.page, "*") for each in found}
    assert not [(page, heading) for page, told in doc_figures.SHOWN.items() for heading in told if (page, heading) not in used]


def test_a_new_figure_is_seen(doc_figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# It\nIt is fast.\n## Cost\nIt takes 3 µs, with `--budget 5%`.\n\n    it takes 4 s\n```\n5 s\n```\n")
    monkeypatch.setattr(doc_figures, "REPOSITORY", tmp_path)
    assert list(doc_figures.sections()) == [("README.md", "Cost", ["3 µs"], [], False)]


def test_bounds_that_the_pages_name_are_those_of_the_code(doc_figures: ModuleType) -> None:
    assert all(right for _, right in doc_figures.constants())
