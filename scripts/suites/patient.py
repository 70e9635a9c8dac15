"""A plugin of pytest's: Hypothesis fails no example for taking long, as it may on a busy machine, counted or traced."""

import hypothesis
import pytest


@pytest.hookimpl(trylast=True)
def pytest_configure():
    """After a suite has chosen a profile of its own."""
    hypothesis.settings.register_profile("patient", hypothesis.settings(deadline=None))
    hypothesis.settings.load_profile("patient")
