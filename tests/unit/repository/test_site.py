"""The site of the documentation, opened from a disk: its search finds pages."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import browser
from tests.browser import Browser
from tests.conftest import PATIENCE_S, REPOSITORY

RESULTS = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"


@pytest.mark.skipif(not browser.CHROMIUM, reason="there is no Chromium")
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="there is no mkdocs: make site installs it")
def test_the_search_finds_pages_without_a_server(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path]
    subprocess.run(words, cwd=REPOSITORY, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=PATIENCE_S)
    with Browser() as shown:
        shown("Page.navigate", url=(tmp_path / "index.html").as_uri())
        shown.wait("document.readyState == 'complete' && document.querySelector('[data-md-component=search-query]')?.checkVisibility()")
        shown.js("document.querySelector('[data-md-component=search-query]').focus()")
        shown.press(*"convoy")
        page = (tmp_path / "how-to" / "convoy.html").as_uri()
        shown.wait(f"{RESULTS}.some(link => link.startsWith({json.dumps(page)}))")  # of a word half typed there are others
        assert not shown.errors
