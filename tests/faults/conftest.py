"""Each fault's scene; `--tries N` tries every fault so often, without it those marked `cheap` are tried once."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scene import Scene


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A try each."""
    if "scene" in metafunc.fixturenames:
        metafunc.parametrize("attempt", range(max(1, metafunc.config.getoption("--tries"))))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    left_out = [item for item in here if not config.getoption("--tries") and not item.get_closest_marker("cheap")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def scene(tmp_path: Path, request: pytest.FixtureRequest, attempt: int) -> Iterator[Scene]:
    """At the end nothing may be left; what was lost and said goes into the results."""
    assert os.geteuid() == 0
    stage = Scene(tmp_path, request.node.originalname.removeprefix("test_"), attempt)
    try:
        yield stage
        stage.settle()
        for name, value in stage.lost.items():
            request.node.user_properties.append((f"lost {name.replace('_', ' ')}", f"{value:g}"))
        request.node.user_properties.append(("said", stage.said))
    finally:
        stage.close()
