"""The table of kernels counts what passed, keeps what was not tried, and names tests that there are."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "kernels.py"
OFF = "tests.bpf.test_samples_off_core"
FUNCTION = "test_states_by_function_are_those_of_the_exact_calls[python3.11]"


def results(path: Path, kernel: str, cases: str) -> Path:
    path.write_text(f'<testsuites><testsuite name="{kernel}">{cases}</testsuite></testsuites>')
    return path


def written(*files: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, SCRIPT, *files], capture_output=True, text=True)


def row(document: str, kernel: str) -> dict[str, str]:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in document.splitlines() if line.startswith("|")]
    return dict(zip(lines[0], next(line for line in lines if line[0] == kernel), strict=True))


def test_what_failed_or_was_skipped_did_not_pass_and_is_named(tmp_path: Path) -> None:
    cases = f"""
        <testcase classname="{OFF}" name="{FUNCTION}"><failure message="2 != 3"/></testcase>
        <testcase classname="{OFF}" name="test_a_thread_that_waits_all_along_has_its_stack"/>
        <testcase classname="{OFF}" name="test_a_child_is_sampled_from_its_beginning"><skipped message="no"/></testcase>
        <testcase classname="{OFF}" name="test_that_nobody_asked_for"/>
        <testcase classname="tests.bpf.test_daemon" name="test_one"/>"""
    done = written(results(tmp_path / "one.xml", "6.1.0-50-cloud-amd64", cases))
    assert done.returncode == 0, done.stderr
    cells = row(done.stdout, "6.1.0-50")
    assert (cells["off the core"], cells["`daemon`"], cells["`top`"]) == ("1 of 3", "1 of 1", "-")
    assert f"* 6.1.0-50: `{FUNCTION}` (off the core), `test_a_child_is_sampled_from_its_beginning` (off the core)\n" in done.stdout


def test_the_verifiers_instructions_are_told_by_program_and_kernel(tmp_path: Path) -> None:
    cases = """<testcase classname="tests.bpf.test_verifier" name="test_of_probes[{}]"><properties><property name="verified function_entry" value="{}"/></properties></testcase>"""
    old = results(tmp_path / "old.xml", "6.1.0-50", cases.format("calls", 44310) + cases.format("args", 194219))
    new = results(tmp_path / "new.xml", "6.12.9", cases.format("calls", 30000))
    said = written(old, new).stdout
    assert "| program | 6.1.0-50 | 6.12.9 |" in said
    assert "| calls_usdt.c: `function_entry` | 44,310 | 30,000 |" in said and "| calls_usdt.c, `--args`: `function_entry` | 194,219 | - |" in said


def test_a_row_is_named_after_number_processor_and_pages(tmp_path: Path) -> None:
    passes = f'<testcase classname="{OFF}" name="{FUNCTION}"/>'
    releases = {
        "6.12.95+deb12-cloud-amd64": "6.12.95",
        "6.12.95+deb12-arm64-16k": "6.12.95 arm64 16k",
        "6.1.0-50-cloud-arm64": "6.1.0-50 arm64",
        "7.2.13+deb14": "7.2.13",
    }
    said = written(*(results(tmp_path / f"{release}.xml", release, passes) for release in releases)).stdout
    assert all(row(said, kernel)["off the core"] == "1 of 1" for kernel in releases.values())


def test_rows_of_kernels_that_were_not_tried_are_kept(tmp_path: Path) -> None:
    fails = f'<testcase classname="{OFF}" name="{FUNCTION}"><error/></testcase>'
    document = tmp_path / "kernels.md"
    document.write_text(written(*(results(tmp_path / f"{kernel}.xml", kernel, fails) for kernel in ("6.1.0", "6.12.9"))).stdout)
    again = written(results(tmp_path / "6.12.xml", "6.12.9", fails.replace("<error/>", "")), document).stdout
    assert row(again, "6.1.0")["off the core"] == "0 of 1" and row(again, "6.12.9")["off the core"] == "1 of 1"
    assert "* 6.1.0: " in again and "* 6.12.9: " not in again
    document.write_text(again)
    assert written(results(tmp_path / "6.12.xml", "6.12.9", fails.replace("<error/>", "")), document).stdout == again


def test_what_was_cut_short_and_gone_on_with_is_one_row(tmp_path: Path) -> None:
    first = results(tmp_path / "1.xml", "6.1.0-50", f'<testcase classname="{OFF}" name="{FUNCTION}"><error/></testcase>')
    second = results(
        tmp_path / "2.xml",
        "6.1.0-50",
        f'<testcase classname="{OFF}" name="{FUNCTION}"/><testcase classname="tests.bpf.test_daemon" name="test_one"/>',
    )
    said = written(first, second).stdout
    assert (row(said, "6.1.0-50")["off the core"], row(said, "6.1.0-50")["`daemon`"]) == ("1 of 1", "1 of 1") and "* 6.1" not in said


def test_no_results_make_no_table(tmp_path: Path) -> None:
    done = written(results(tmp_path / "one.xml", "6.1.0", '<testcase classname="tests.bpf.test_other" name="test_other"/>'))
    assert (done.returncode, done.stdout) == (1, "")


def test_every_test_that_is_named_is_there() -> None:
    named = subprocess.run([sys.executable, SCRIPT, "--tests"], check=True, capture_output=True, text=True).stdout.splitlines()
    for each in named:
        file, _, test = each.partition("::")
        assert f"def {test.partition('[')[0]}(" in (REPOSITORY / file).read_text() if test else (REPOSITORY / file).exists(), each


def test_a_kernel_of_another_processor_has_a_row_of_its_own(tmp_path: Path) -> None:
    passed = f'<testcase classname="{OFF}" name="{FUNCTION}"/>'
    releases = "6.1.0-50-cloud-amd64", "6.1.0-50-cloud-arm64"
    said = written(*(results(tmp_path / f"{release}.xml", release, passed) for release in releases)).stdout
    assert [row(said, kernel)["off the core"] for kernel in ("6.1.0-50", "6.1.0-50 arm64")] == ["1 of 1"] * 2


def test_a_kernel_without_an_image_is_left_out_of_the_short_part_and_fails_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [REPOSITORY / "scripts" / "test-kernels-short.sh", "6.1"], env=os.environ | {"PYTRACE_VM": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "") and "kernel 6.1: left out" in done.stdout
