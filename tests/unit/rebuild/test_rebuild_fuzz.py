"""The library that rebuilds calls under the address and undefined-behaviour sanitizers: whatever the events or records, no fault."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
SANITIZERS = "address,undefined,float-cast-overflow"


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built to a temporary place."""
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc")
    out = tmp_path_factory.mktemp("sanitized") / "rebuild.so"
    sources = sorted((REPOSITORY / "pytrace_ebpf/rebuild").glob("*.c"))
    flags = ["-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-fwrapv", "-ffp-contract=off"]
    words = ["gcc", *flags, f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all", "-o", out, *sources, "-lm", "-x", "c", "-"]
    subprocess.run(words, input=b'__attribute__((visibility("default"))) const char pytrace_sources[] = "";', check=True)
    return out


@pytest.mark.parametrize("first", range(0, 60, 30))
def test_random_events_do_no_harm(sanitized: Path, first: int) -> None:
    run_under(sanitized, "fuzz_rebuild.py", first, first + 30)


def test_random_records_of_an_agent_are_decoded_as_the_reference_does(sanitized: Path) -> None:
    run_under(sanitized, "fuzz_decoding.py", 0, 300)


def run_under(sanitized: Path, program: str, first: int, last: int) -> None:
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    environment = {
        **os.environ, "LD_PRELOAD": runtime, "PYTHONPATH": str(REPOSITORY), "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1", "OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system",
    }  # fmt: skip
    words = [sys.executable, HERE / program, sanitized, str(first), str(last)]
    run = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and run.stdout.endswith("all held\n"), run.stdout + run.stderr[-4000:]
