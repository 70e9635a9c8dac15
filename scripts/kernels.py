"""docs/kernels.md, from the results of test runs on several kernels: which feature was seen to work on which, and what their verifiers had to follow.

scripts/kernels.py --tests [without-ebpf]             the tests, one a line: a file of arguments for pytest; those that need no eBPF
scripts/kernels.py KERNEL.xml... [docs/kernels.md]    the document, on standard output; of an earlier one the rows of other kernels are kept
"""

import re
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path

from pytrace_ebpf import processors

_EQUAL, _LAUNCHED = "test_counts.py::test_calls_equal_what_the_interpreter_counts", "test_counts.py::test_calls_of_a_launched_program_too"
_VALUES = "test_values.py::test_values_are_those_that_a_decorator_sees"
_BY_THREAD = "test_states_by_thread_are_those_of_the_switches"
_CHARGED = "test_functions_are_charged_for_what_they_allocate_and_keep[python3.11-agent]"
_KILLED = "test_kills.py::test_killed_tracers_harm_no_target_and_leave_nothing"
_NATIVE = "as this kernel has them-python3.11"
_LIBRARIES = ("test_of_libraries[native.c-settings0-sizes0]", "test_of_libraries[blocks.c-settings1-sizes1]")
_OTHERS = [f"[{version}-agent-{program}]" for program in ("fib", "threads", "generators", "exceptions") for version in ("python3.9", "python3.13")]
ROOTS = Path("/var/lib/pytrace-ebpf/roots")  # which scripts/vm/build.sh has put into machines of another processor
_IN = {"test_dump.py": "unit/record/dump", "test_objects.py": "unit/record/dump", "test_rootless.py": "unit/options"}  # other folders than tests/bpf


def _of(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{file}::{name}" for name in names)


_OTHER_PYTHONS, _WITHOUT_EBPF = "`agent`, 3.9 and 3.13", ("`--rootless`", "`dump`")
# What a user asks for -> the tests that show it, all of a file or of a function where no more is named.
FEATURES: dict[str, tuple[str, ...]] = {
    "calls, `agent`": (f"{_EQUAL}[python3.11-agent-exceptions]", f"{_EQUAL}[python3.11-agent-threads]", f"{_LAUNCHED}[python3.11-agent-generators]"),
    "calls, `usdt`": (f"{_EQUAL}[python3.11-usdt-exceptions]", f"{_EQUAL}[python3.11-usdt-threads]"),
    _OTHER_PYTHONS: tuple(test + which for which in _OTHERS for test in (_EQUAL, _LAUNCHED)),
    "split": _of(
        "test_sched.py",
        "test_on_cpu_time_is_the_kernels_own[python3.11]",
        "test_sleeping_is_blocked[python3.11]",
        "test_fighting_for_the_gil_is_gil_wait[python3.11]",
        "test_a_lock_and_a_pipe_are_blocked_and_not_the_gil[python3.11-lock_wait-want]",
    ),
    "off the core": _of(
        "test_samples_off_core.py",
        "test_states_by_function_are_those_of_the_exact_calls[python3.11]",
        f"{_BY_THREAD}[python3.11-two_locks]",
        "test_a_thread_that_waits_all_along_has_its_stack",
        "test_a_child_is_sampled_from_its_beginning",
    ),
    "`--sample`": _of("test_samples.py", "test_a_program_of_which_shares_are_known[python3.11]", "test_nothing_is_loaded_into_the_process"),
    "`--args`, `agent`": (f"{_VALUES}[python3.11-agent-attached]",),
    "`--args`, `usdt`": (f"{_VALUES}[python3.11-usdt-attached]",),
    "`--memory`": _of("test_memory.py", _CHARGED),
    "`--layers`": _of(
        "test_native.py", "test_every_call_below_its_caller[agent]", "test_shapes_and_messages", "test_a_tracer_that_is_killed_leaves_no_probe"
    ),
    "`--native-memory`": _of("test_native_memory.py", f"test_every_block_is_seen_once_with_its_size[{_NATIVE}]", _CHARGED),
    "native frames": _of("test_samples_native.py", "test_native_code_stands_below_the_function_that_called_it[python3.11]"),
    "`trace`": _of("test_traces_on_request.py", "test_who_asks_has_the_trace_and_whoever_asks_for_the_same_shares_its_probes"),
    "what was waited for": _of(
        "test_resources.py",
        "test_each_wait_names_what_the_program_knows[python3.11-agent]",
        "test_samples_name_what_the_program_knows[python3.11]",
        "test_who_is_at_the_other_end[python3.11-agent]",
    ),
    "clients, pools, trace ids": _of("test_clients.py", "test_each_is_counted_as_the_program_asked", "test_requests_have_the_ids_of_their_spans"),
    "`dump`": (
        "test_dump.py::test_every_stack_is_faulthandlers_and_every_wait_names_its_object[python3.11-usr]",
        *_of("test_objects.py", "test_who_has_the_lock_that_a_thread_waits_for[python3.11-usr]", "test_tasks_are_asyncios_own[python3.11-usr]"),
    ),
    "`--rootless`": _of("test_rootless.py", "test_every_call_of_every_thread[cputime]"),
    "`daemon`": ("test_daemon.py",),
    "`top`": _of("test_top.py", "test_shares_are_those_of_a_program_of_which_they_are_known_until_it_ends"),
    "kills": (f"{_KILLED}[python3.11-agent-threads]", f"{_KILLED}[python3.11-usdt-threads]"),
    "verifier": _of("test_verifier.py", "test_of_scheduling", "test_of_samples", "test_of_probes[calls]", "test_of_probes[args]", *_LIBRARIES),
}
NOT_PASSED = {"failure", "error", "skipped"}
VERIFIED, _TRIED = "verified ", "tried"  # the properties of tests/bpf/test_verifier.py, and what finds out how to load the others
_SOURCES = {
    "test_of_scheduling": "sched.c",
    "test_of_samples": "samples.c",
    "test_of_probes[calls]": "calls_usdt.c",
    "test_of_probes[args]": "calls_usdt.c, `--args`",
}
TEXT = """\
# Which kernels it was seen to work on

`scripts/kernels.py` writes this from what the tests said (`make test-kernels`; a row may be of several runs, each of some of the tests). 6.1 and 6.12 are
Debian 12's own kernel and its backports', 5.10 is Debian 11's, 7 and above sid's, all for clouds, booted in QEMU without KVM on two cores, with a root file system of
Debian 12 and its Python 3.11; arm64 is the same for that processor, with 3.9 and 3.13 of Debian 11 and 13 beside it. Any other is that of the host that ran it. Each cell
says how many tests passed, of how many; scripts/kernels.py has which. Each is tried once. An emulated machine is ten to twenty times slower than its host, and what is
compared with a clock can fail where the host takes its cores away meanwhile. QEMU 7.2 with a thread for each core can run code that the kernel had just replaced, which then
stops ("Oops: int3"): such a run is made again. A dash: not tried, or not to be had: on 5.10 `doctor` and each recording say in a sentence that there is nothing but `--rootless`.

{features}
What did not pass:

{failed}
## What the verifier follows

The kernel gives up on a program at 1,000,000 instructions that it has followed, and a test fails at 700,000. Another kernel follows more of the same program, or less.

{verified}"""


def tests(without_ebpf: bool) -> list[str]:
    """As pytest takes them with --matrix: those of the verifier, then the first of each feature, the second, ..., so that a run that is cut short has something of each.

    Only of what this processor has and other Pythons that are here; `without_ebpf`: of what can be had without.
    """
    wanted = _WITHOUT_EBPF if without_ebpf else tuple(FEATURES)
    lacks = {f"`{option}`" for option in processors.here().lacks}
    if not all((ROOTS / suite).is_dir() for suite in ("bullseye", "trixie")):
        lacks.add(_OTHER_PYTHONS)
    features = {feature: names for feature, names in FEATURES.items() if feature in wanted and feature not in lacks}
    verifier = [name for name in features.pop("verifier", ()) if "`--layers`" not in lacks or "test_of_libraries" not in name]
    names = [*verifier, *(name for each in zip_longest(*features.values()) for name in each if name is not None)]
    return [f"tests/{_IN.get(name.partition('::')[0], 'bpf')}/{name}" for name in names]


def feature_of(case: ET.Element) -> str | None:
    """The feature that a case of a JUnit file shows; None for one that is not asked for."""
    file = case.get("classname", "").rsplit(".", 1)[-1] + ".py"
    named = f"{file}::{case.get('name')}"
    function = named.partition("[")[0]
    return next((feature for feature, names in FEATURES.items() if not {file, function, named}.isdisjoint(names)), None)


def table(rows: list[list[str]]) -> str:
    """In Markdown; the first row is the head."""
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *others]) + "\n"


def sections(document: str) -> list[list[list[str]]]:
    """The cells of a document's tables, without their rules."""
    found = re.findall(r"(?:^\|.*\n)+", document, re.MULTILINE)
    return [[[cell.strip() for cell in line.strip("|").split(" | ")] for line in part.splitlines() if not line.startswith("|---")] for part in found]


def kernel_of(release: str) -> str:
    """A kernel as the document names it, by `uname -r`: 6.1.0-50, and of another processor than x86-64 that and its pages, as Debian's kernels end in it."""
    number = re.match(r"\d+\.\d+(\.\d+)?(-\d+)?", release)[0]  # type: ignore[index]
    other = re.search(r"-arm64(-\d+k)?$", release)
    return number + other[0].replace("-", " ") if other else number


def by_number(kernel: str) -> list[int]:
    """A key to sort by: 6.1 is before 6.12."""
    return [int(number) for number in re.findall(r"\d+", kernel)[:3]]


class Document:
    """What is known by kernel: the cells of its features, what failed, and what its verifier followed of each program."""

    def __init__(self) -> None:
        self.features: dict[str, dict[str, str]] = {}
        self.failed: dict[str, list[str]] = {}
        self.verified: dict[str, dict[str, str]] = {}
        self._passed: dict[str, dict[str, dict[str, bool]]] = {}  # by kernel, feature and test

    def read_earlier(self, text: str) -> None:
        """An earlier document."""
        features, verified = sections(text)
        for kernel, *cells in features[1:]:
            self.features[kernel] = dict(zip(features[0][1:], cells, strict=True))
            self.verified[kernel] = {}
        self.failed = {line.split(":")[0][2:]: line.split(": ", 1)[1].split(", ") for line in re.findall(r"^\* .*$", text, re.MULTILINE)}
        for program, *counts in verified[1:]:
            for kernel, count in zip(verified[0][1:], counts, strict=True):
                self.verified[kernel][program] = count

    def read_results(self, path: Path) -> None:
        """A JUnit file, whose suite is named after its kernel; of several of one kernel each adds its tests, and what was run again counts as it ended last."""
        suite = next(ET.parse(path).iter("testsuite"))
        kernel = kernel_of(suite.get("name", ""))
        if kernel not in self._passed:
            self._passed[kernel], self.verified[kernel] = defaultdict(dict), {}
        passed = self._passed[kernel]
        for case in suite.iter("testcase"):
            feature = feature_of(case)
            if feature is None:
                continue
            name = case.get("name", "")
            passed[feature][name] = NOT_PASSED.isdisjoint(part.tag for part in case)
            for each in case.iter("property"):
                if (program := each.get("name", "")).startswith(VERIFIED) and program != VERIFIED + _TRIED:
                    source = _SOURCES.get(name) or name.partition("[")[2].partition("-")[0]
                    self.verified[kernel][f"{source}: `{program.removeprefix(VERIFIED)}`"] = f"{int(each.get('value', '')):,}"
        self.features[kernel] = {feature: f"{sum(cases.values())} of {len(cases)}" for feature, cases in passed.items()}
        self.failed[kernel] = [f"`{name}` ({feature})" for feature, cases in passed.items() for name, right in cases.items() if not right]

    def __str__(self) -> str:
        """In Markdown."""
        kernels = sorted(self.features, key=by_number)
        features = [["kernel", *FEATURES], *([kernel, *(self.features[kernel].get(feature, "-") for feature in FEATURES)] for kernel in kernels)]
        programs = sorted({program for counts in self.verified.values() for program in counts})
        verified = [["program", *kernels], *([program, *(self.verified[kernel].get(program, "-") for kernel in kernels)] for program in programs)]
        failed = [f"* {kernel}: {', '.join(self.failed[kernel])}\n" for kernel in kernels if self.failed.get(kernel)]
        return TEXT.format(features=table(features), failed="".join(failed) or "Nothing.\n", verified=table(verified))


def main() -> int:
    """Print the tests or the document; 1 where a file has no such test."""
    if sys.argv[1:2] == ["--tests"]:
        print(*tests(sys.argv[2:] == ["without-ebpf"]), sep="\n")
        return 0
    document = Document()
    for path in sorted(map(Path, sys.argv[1:]), key=lambda path: path.suffix != ".md"):
        if path.suffix == ".md":
            document.read_earlier(path.read_text())
        elif any(map(feature_of, ET.parse(path).iter("testcase"))):
            document.read_results(path)
        else:
            print(f"{path}: no result of a test of scripts/kernels.py", file=sys.stderr)
            return 1
    print(document, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
