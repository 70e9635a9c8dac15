"""Every call is seen, once, and under its name: counts against those that the interpreter itself reports."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import pytrace_ebpf
from tests.bpf.conftest import Recorder, lost
from tests.conftest import TARGETS, Python, Target

PROGRAMS = (
    "fib", "generators", "coroutines", "exceptions", "threads", "closures", "generated", "callbacks", "many_threads",
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_calls_equal_what_the_interpreter_counts(
    program: str,
    python: Python,
    source: str,
    target: Callable[..., Target],
    attach: Callable[..., Recorder],
    truth: Callable[..., dict[tuple[str, str, int], int]],
) -> None:
    expected = ours(truth(program, python=python), python)
    process = target(program, "--wait", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    process.wait()
    assert counted(recorder.finish(), python, source) == expected


def test_names_are_those_that_the_interpreter_has(
    python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder], truth: Callable[..., dict[tuple[str, str, int], int]]
) -> None:
    """Long ones and those beyond ASCII are read after the call, where a probe is what reports it: so the target is held."""
    expected = every(truth("names", python=python), python)
    process = target("names", "--wait", "--hold", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    process.done()
    assert counted(recorder.stop(), python, source, every) == expected


@pytest.mark.usually("agent")
@pytest.mark.parametrize("program", PROGRAMS)
def test_calls_of_a_launched_program_too(
    program: str,
    python: Python,
    source: str,
    run: Callable[..., tuple],
    truth: Callable[..., dict[tuple[str, str, int], int]],
) -> None:
    expected = ours(truth("--from-start", program, python=python), python)
    directory, ended = run(python.command(program), "--source", source)
    assert ended.returncode == 0, ended.stderr
    found = counted(directory, python, source)
    for counts in (found, expected):  # namedtuple's of the standard library, part of which truth.py had imported before
        counts.pop(("<string>", "<module>", 1), None)
    assert found == expected


@pytest.mark.parametrize("program", ["call_sites", "callbacks", "exceptions", "generated", "many_threads"])
def test_call_sites_equal_what_the_interpreter_counts(
    program: str,
    python: Python,
    source: str,
    target: Callable[..., Target],
    attach: Callable[..., Recorder],
    truth: Callable[..., dict[tuple[str, str, int], int]],
) -> None:
    expected = truth("--sites", program, python=python)
    process = target(program, "--wait", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    process.wait()
    trace = pytrace_ebpf.open(recorder.finish())
    names = trace.functions().set_index("func_id").apply(lambda row: f"{row['file']}:{row['qualname']}:{row['first_line']}", axis=1)
    sites = trace.call_sites()
    callers = sites["caller_id"].map(names) + ":" + sites["call_line"].fillna(0).astype(str)
    counts = Counter(dict(zip(callers + " > " + sites["func_id"].map(names), sites["calls"], strict=True)))
    truly = between({f"{left}:{name}:{line}": number for (left, name, line), number in expected.items()}, program, python)
    found = between(counts, program, python)
    if source == "usdt":
        truly = dict(sum((Counter({without_a_line(site): number}) for site, number in truly.items()), Counter()))
    if source == "usdt" and python.version == "3.15":  # whose probes do not report throw()
        found, truly = ({site: number for site, number in sites.items() if not re.search(":throws:|:thrown_into:", site)} for sites in (found, truly))
    assert truly and found == truly


def without_a_line(site: str) -> str:
    """A site as it is where its caller is so long that the probes do not read its line table."""
    caller, _, callee = site.partition(" > ")
    return f"{caller.rpartition(':')[0]}:0 > {callee}" if ":many_lines:" in caller else site


def between(sites: dict[str, int], program: str, python: Python) -> dict[str, int]:
    """Call sites, both ends of which are of the target itself; before 3.11 the interpreter counts plain names."""
    found: Counter[str] = Counter()
    own = (f"{TARGETS}/{program}.py:", "<made>", "<string>", "<template")
    for site, number in sites.items():
        ends = [end.split(":") for end in str(site).split(" > ") if end.startswith(own)]  # file, name, lines
        if len(ends) == 2:
            plain = [[file, name.rpartition(".")[2] if python.minor < 11 else name, *lines] for file, name, *lines in ends]
            found[" > ".join(map(":".join, plain))] += number
    return dict(found)


def test_recursion_to_the_limit(python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    process = target("recursion", "--wait", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    expected = process.done()["calls"]
    trace = pytrace_ebpf.open(recorder.finish())
    calls = trace.calls(columns=["func_id", "status", "depth"]).merge(trace.functions(), on="func_id")
    number = calls[calls["status"] != "open_at_start"].groupby("name").size()
    assert {name: number[name] for name in expected} == expected


@pytest.mark.usually("agent")
def test_qualified_names(python: Python, source: str, target: Callable[..., Target], attach: Callable[..., Recorder]) -> None:
    """Before 3.11 code objects have none, and they come from the source."""
    process = target("closures", "--wait", "--hold", python=python)
    recorder = attach(process.pid, "--source", source)
    process.go()
    process.done()
    functions = pytrace_ebpf.open(recorder.stop()).functions()
    own = set(functions.loc[functions["file"].str.endswith("closures.py"), "qualname"])
    assert {"counted.<locals>.wrapper", "doubled.<locals>.wrapper", "Cat.name", "Cat.Kitten.name", "Dog.name", "Dog.made"} <= own


def ours(counts: dict[tuple[str, str, int], int], python: Python) -> dict[tuple[str, str, int], int]:
    """The functions of the target itself; before 3.11 the interpreter counts plain names."""
    found: Counter[tuple[str, str, int]] = Counter()
    for (file, name, line), count in counts.items():
        if file.startswith((str(TARGETS), "<")) and not file.endswith(("ready.py", "truth.py")) and "<frozen" not in file:
            plain = python.minor < 11 and name.rpartition(".")[2]
            found[file, plain or name, line] += count
    return dict(found)


def every(counts: dict[tuple[str, str, int], int], python: Python) -> dict[tuple[str, str, int], int]:
    """Functions of files that are none, too, and of the target itself; before 3.11 the interpreter counts plain names."""
    return ours(
        {(f"<{file}>" if file.startswith(("memory", "template")) else file, name, line): count for (file, name, line), count in counts.items()},
        python,
    )


Kept = Callable[[dict[tuple[str, str, int], int], Python], dict[tuple[str, str, int], int]]


def counted(directory: Path, python: Python, source: str, kept: Kept = ours) -> dict[tuple[str, str, int], int]:
    """Calls by function, of a trace without losses."""
    trace = pytrace_ebpf.open(directory)
    assert not lost(trace)
    calls = trace.calls(columns=["func_id", "status"]).merge(trace.functions(), on="func_id")
    calls = calls[calls["status"] != "open_at_start"]
    # The probes of 3.15 do not report throw(); the resume is inferred.
    assert (python.version == "3.15" and source == "usdt") or not (calls["status"] == "repaired").any()
    return kept(Counter(zip(calls["file"], calls["qualname"], calls["first_line"], strict=True)), python)
