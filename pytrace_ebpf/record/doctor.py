"""What works here and for one process, as findings: pure data from host.py and target.py."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError, TargetError
from pytrace_ebpf.patterns import Mains, fitting, nearest
from pytrace_ebpf.printable import printable
from pytrace_ebpf.record import kernel_lacks
from pytrace_ebpf.record.cpython import encodable
from pytrace_ebpf.record.kernel import abilities, compile_ahead, host, library_probes, red_zone, uprobe_multi
from pytrace_ebpf.record.kernel.host import Finding
from pytrace_ebpf.record.native.mapped import layers_of, mapped_libraries
from pytrace_ebpf.record.pattern_counts import fits, loaded
from pytrace_ebpf.record.process.target import Target, inspect
from pytrace_ebpf.record.sampling import clocks
from pytrace_ebpf.record.source_selection.injection_checks import cannot_inject
from pytrace_ebpf.record.source_selection.selection import FUNCTION_PROBES, Seen, agent_serves, choose, probes_serve
from pytrace_ebpf.trace.streams.layers import NAMES
from pytrace_ebpf.units import plural

_COMMAND_SHOWN = 200  # characters
_SHOWN = 3  # functions

__all__ = ["Finding", "exit_code", "findings"]


def findings(pid: int | None = None, patterns: Sequence[tuple[str, str]] = ()) -> list[Finding]:
    """Findings about this host and, with `pid`, about that process, and about which of its functions `patterns`, each with its option, fit."""
    return [
        *host.findings(),
        *_scheduling(),
        *_off_the_core(),
        *_libraries(),
        *_red_zone(),
        *_compiled(),
        *(_about_process(pid, patterns) if pid is not None else ()),
    ]


def exit_code(found: list[Finding]) -> int:
    """0: tracing is possible; 4: not on this host; 3: not of this process."""
    troubled = {finding.about for finding in found if finding.ok == "problem"}
    return HostError.exit_code if "host" in troubled else TargetError.exit_code if troubled else 0


def _scheduling() -> Iterator[Finding]:
    if abilities.may_try():
        with suppress(HostError):  # said already: without type information nothing is traced
            lacks = kernel_lacks.lacks()
            if not lacks:
                yield Finding("scheduling", "ok", "the kernel has the tracepoints and fields that scheduling and samples are read by, as a try shows")
            for each in lacks:
                yield Finding(each.subject, "problem" if each.needed else "warning", f"{each.sentence}, as a try shows")


def _off_the_core() -> Iterator[Finding]:
    with suppress(HostError):  # said already: without type information nothing is traced
        if abilities.may_try():
            why = clocks.why_not_off_the_core()
            yield Finding("off the core", "warning" if why else "ok", why or "threads are sampled when they come back to a core, as a try shows")


def _libraries() -> Iterator[Finding]:
    for what, why in processors.here().lacks.items():
        yield Finding("processor", "warning", f"there is no {what} yet: {why}")
    if not abilities.may_try() or "--layers" in processors.here().lacks:
        return
    if uprobe_multi.serves():
        yield Finding("native layers", "ok", "the kernel places the many probes of --layers and --native-memory in one step, as a try shows")
    else:
        took = library_probes.seconds_to_remove()
        removing = f": to remove one took {took:.2f} s just now" if took is not None else ""
        yield Finding(
            "native layers", "warning",
            f"the kernel places and removes the probes of --layers and --native-memory one by one, as a try shows{removing}, and --layers torch has about 600; "
            "Linux 6.10 does it in one step",
        )  # fmt: skip


def _red_zone() -> Iterator[Finding]:
    if red_zone.is_written():  # nothing is said where it is not, or cannot be tried
        yield Finding(
            "red zone", "warning",
            "probes of this kernel on five-byte nops overwrite what a leaf function keeps below its stack pointer (Linux 6.18, until that is fixed): those of "
            "CPython are one-byte nops and not concerned; other tools' USDT probes may be",
        )  # fmt: skip


def _compiled() -> Iterator[Finding]:
    if os.geteuid() or host.bcc() is None:  # what is kept is root's
        return
    if compile_ahead.all_kept():
        yield Finding("compiled", "ok", "the eBPF programs are compiled for this kernel")
    else:
        yield Finding(
            "compiled", "warning", "the eBPF programs are not all compiled for this kernel yet, which the first recording waits for", host.FIX
        )


def _about_process(pid: int, patterns: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    try:
        target = inspect(pid)
    except TargetError as error:
        yield Finding("process", "problem", str(error), about="target")
    except HostError as error:
        yield Finding("process", "problem", str(error), "sudo pytrace-ebpf ...")
    else:
        yield from _about_target(target)
        yield from _about_patterns(target, patterns) if patterns else ()


def _about_patterns(target: Target, patterns: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    known, mains = loaded(target), Mains([target.command])
    for option, pattern in patterns:
        found = fits(option, pattern, known, mains)
        names = ", ".join(f"{qualname} of {file}" for file, _, qualname in found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        said = fitting(option, pattern, len(found), len(known), [] if found else nearest(pattern, known))
        yield _finding("pattern", "ok" if found else "warning", f"{said}{': ' * bool(names)}{printable(names)}")


def _about_target(target: Target) -> Iterator[Finding]:
    command = "".join(c if c.isprintable() else "?" for c in target.command)[:_COMMAND_SHOWN]
    yield _finding("process", "ok", f"process {target.pid} runs {command} with {plural(len(target.threads), 'thread')}")
    yield _python(target)
    yield _probes(target)
    yield from _long_nops(target)
    yield from _sources(target)
    yield _gil(target)
    yield _free_threading(target)
    yield from _jit(target)
    yield _native(target)
    yield _container(target)


def _long_nops(target: Target) -> Iterator[Finding]:
    """Of an interpreter whose probes are such nops, on such a kernel."""
    file = target.binary_file.fileno()
    long = sorted(name for name, probes in target.binary.probes.items() if any(os.pread(file, 5, probe.offset) == red_zone.NOP5 for probe in probes))
    if long and red_zone.is_written():
        yield _finding(
            "nops",
            "warning",
            f"its probes {', '.join(long)} are five-byte nops, which this kernel's probes may corrupt values at; use --source agent",
        )


def _sources(target: Target) -> Iterator[Finding]:
    seen = Seen(encodable.unencodable(target) or encodable.unencodable_path(target), cannot_inject=cannot_inject(target))
    by_probes, why_probes = probes_serve(target, seen)
    by_agent, why_agent = agent_serves(target)
    yield _finding("usdt", "ok" if by_probes else "warning", why_probes)
    if by_probes:
        yield _cost_of_probes(target)
    yield _finding("agent", "ok" if by_agent else "warning", why_agent)
    if by_agent:
        yield _cost_of_agent(target)
    try:
        attached = choose(target, "auto", launched=False, seen=seen).source
        launched = choose(target, "auto", launched=True, seen=seen).source
    except TargetError as error:
        yield _finding("source", "warning" if by_agent else "problem", str(error))
    else:
        unless = ", unless a look finds that it would cost over 10 % of the program's time" if attached == "usdt" else ""
        yield _finding("source", "ok", f"attach takes {attached}{unless}; run takes {launched}")


def _python(target: Target) -> Finding:
    if target.python_version is None:
        return _finding("python", "problem", f"the version of Python in {target.binary_name} cannot be determined")
    version = ".".join(map(str, target.python_version))
    return _finding("python", "ok", f"it is CPython {version}, run from {target.executable}")


def _probes(target: Target) -> Finding:
    where = "its executable" if target.binary_name == target.executable else f"its library {target.binary_name}"
    names = [*(n for n in FUNCTION_PROBES if n in target.binary.probes)]
    names += sorted(set(target.binary.probes) - set(names))
    if not names:
        return _finding("probes", "warning", f"{where} has no USDT probes at all")
    state = "ok" if names[: len(FUNCTION_PROBES)] == list(FUNCTION_PROBES) else "warning"
    return _finding("probes", state, f"{where} has the USDT probes {', '.join(names)}")


def _cost_of_probes(target: Target) -> Finding:
    if target.python_version is not None and target.python_version[:2] == (3, 11):
        return _finding(
            "usdt cost",
            "warning",
            "while it is traced every opcode is slower (about 8 times on pure call code, as the semaphore of `line` is "
            "raised), every call takes about 3 us more, and CPython 3.11 has a use-after-free on that path that may "
            "crash a program which makes and frees very large code objects",
        )
    return _finding("usdt cost", "ok", "while it is traced every call takes about 2.5 us more (two probe hits), other code nothing")


def _cost_of_agent(target: Target) -> Finding:
    minor = (target.python_version or (3, 0))[:2]
    if minor >= (3, 12):
        return _finding("agent cost", "ok", "while it is traced every call takes 0.1 to 0.2 us more")
    return _finding("agent cost", "ok", "while it is traced every call takes about 0.3 us more, and one of a C function about 0.1 us")


def _gil(target: Target) -> Finding:
    if target.gil_range() == (0, 0):
        return _finding("GIL", "warning", "its GIL cannot be found, so a wait for it would be counted as blocked")
    return _finding("GIL", "ok", "its GIL is found, so waits for it are recognized")


def _free_threading(target: Target) -> Finding:
    if not target.free_threaded:
        return _finding("free threading", "ok", "it is a build with a GIL")
    runs = "runs with one all the same (PYTHON_GIL=1, -X gil=1, or a module that needs it)" if target.gil_is_on() else "runs without"
    lacking = "--args, --c-calls, --memory, --opcodes exact, --sample and --budget need a build with a GIL"
    return _finding("free threading", "warning", f"it is a build without a GIL, and {runs}: calls and waits are recorded, but {lacking}")


def _jit(target: Target) -> Iterator[Finding]:
    if target.python_version is None or target.python_version < (3, 13):
        return
    if target.jit:
        yield _finding(
            "JIT",
            "warning",
            "its environment asks for the JIT, whose code fires no probe",
            "restart it with PYTHON_JIT=0",
        )
    else:
        yield _finding("JIT", "ok", "its environment does not ask for the JIT (a build with the JIT always on would not show)")


def _native(target: Target) -> Finding:
    found = layers_of(mapped_libraries(target.pid))
    names = [name for name, layer in NAMES.items() if layer in found]
    if not names:
        return _finding("native", "ok", "it has loaded no library that --layers can record")
    libraries = sorted({path.rpartition("/")[2] for paths in found.values() for path in paths})
    return _finding("native", "ok", f"--layers {','.join(names)} can record calls of the libraries it has loaded ({', '.join(libraries)})")


def _container(target: Target) -> Finding:
    if target.in_container:
        return _finding("container", "ok", "it runs in namespaces of its own (a container); its files are read through them")
    return _finding("container", "ok", "it runs in the same namespaces as this command")


def _finding(subject: str, ok: str, sentence: str, fix: str = "") -> Finding:
    return Finding(subject, ok, sentence, fix, "target")  # type: ignore[arg-type]
