"""Attacks by an unprivileged user on the tracer, which is root. That user is one without a name: 65533."""

import os
import subprocess

import pytest

from tests.conftest import PATIENCE_S

USER = 65533
PYTHON = "/usr/bin/python3.11"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root needed: it is root who must not be fooled")


def as_user(program: str, *args: object) -> str:
    """Run a Python program (text) as the user; returns what it says."""
    words = [PYTHON, "-I", "-c", program, *map(str, args)]
    return subprocess.run(
        words, user=USER, group=USER, extra_groups=[], cwd="/", check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S
    ).stdout
