"""The automaton of `--args` says yes of every function that a pattern means, and of few others."""

import random

import numpy as np
import pytest

from pytrace_ebpf.record.cpython.functions import module_of
from pytrace_ebpf.record.filters import Observed
from pytrace_ebpf.record.usdt.matching import automaton

WORDS = 4
FILES = (
    "/srv/app/shop.py", "/srv/app/shop/__init__.py", "/usr/lib/python3/dist-packages/shop/orders.py", "/usr/lib/python3.11/json/decoder.py", "/usr/lib/python3.11/json/__init__.py",
    "/srv/.venv/lib/python3.9/site-packages/pkg/sub/deep.py", "/usr/lib/python311.zip/zipped.py", "<string>", "<frozen importlib._bootstrap>", "/bin/tool",
    "/srv/my.app.py", "/srv/é/naïve.py",
)  # fmt: skip
QUALNAMES = ("free", "Cart.add", "Cart.inner.<locals>.<listcomp>", "<lambda>", "<module>", "f.<locals>.g", "naïve.é", "x" * 127)
PATTERNS = (
    "shop", "shop.free", "shop.Cart.add", "shop.*.add", "sh?p", "s*", "*", "*.add", "*add", "shop.orders", "shop.orders.*", "json", "json.decoder.*", "pkg.sub",
    "pkg.*.deep", "pkg.sub.deep.Cart.add", "zipped", "<string>", "<string>.free", "<frozen importlib._bootstrap>", "tool.free", "my.app", "my.app.Cart.*",
    "*/shop.py", "/srv/*", "*/json/*", "/usr/lib/python3.11/json/decoder.py", "naïve", "naïve.naïve.é", "[sj]*", "shop.[Cc]art.*", "shop.f[rx]ee", "shop.[]]",
    "free", "Cart.add", "Cart.*", "f*g", "<lambda>", "__main__", "__main__.Cart.add", "__*", "shop.py", "app/shop.py", "./shop.py",
    "srv.app.shop.Cart.add", "app.shop", "*.<lambda>", "shop." + "x" * 127, "*.f.*.g",
)  # fmt: skip


def says_yes(patterns: tuple[str, ...], file: str, name: str) -> bool:
    """As usdt_matching.h does it."""
    first, last, steps, stays = automaton(patterns)
    states, steps, stays = first.copy(), steps.reshape(256, WORDS), stays.reshape(256, WORDS)
    for byte in f"{file}\n{name}\n".encode():
        states = (states & steps[byte]) << np.uint64(1) | (states & stays[byte])
    return bool((states & last).any())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_function_is_missed(pattern: str) -> None:
    met = 0
    for file in FILES:
        for qualname in QUALNAMES:
            name = qualname.rpartition(".")[2]
            observed = Observed((pattern,))
            wanted = any(
                observed.wants(file, module_of(file), shown, is_main, shown is name) for shown in (qualname, name) for is_main in (False, True)
            )
            met += wanted
            assert not wanted or says_yes((pattern,), file, name), (file, qualname)
    assert met or pattern == "shop.[]]"


@pytest.mark.parametrize(
    ("pattern", "file", "name"),
    [
        ("shop", "/srv/workshop.py", "f"), ("shop", "/srv/shopping.py", "f"), ("shop.free", "/srv/shop.py", "freed"),
        ("free", "/srv/shop.py", "freed"), ("Cart.add", "/srv/shop.py", "added"), ("__main__.add", "/srv/shop.py", "added"),
        ("*/shop.py", "/srv/shop.pyx", "f"), ("*.add", "/srv/shop.py", "added"), ("<string>", "/srv/a.py", "<lambda>"),
    ],
)  # fmt: skip
def test_others_are_left_alone(pattern: str, file: str, name: str) -> None:
    assert not says_yes((pattern,), file, name)


def test_each_of_many_patterns_counts() -> None:
    some = random.Random(1)
    for count in (2, 4, 5, 9, 40, 128, 200):
        patterns = tuple(f"module{number}.f{number}" for number in range(count))
        for number in some.sample(range(count), 2):
            assert says_yes(patterns, f"/srv/module{number}.py", f"f{number}")
    assert not says_yes(tuple(f"module{number}.f" for number in range(4)), "/srv/shop.py", "g")
