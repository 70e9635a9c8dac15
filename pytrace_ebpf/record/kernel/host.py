"""What this host lets the tracer do: one finding per condition, and the command that fixes it.

Does not import bcc. Of eBPF it tries what kernels may lack (abilities.py), where this user may.
"""

import importlib.util
import os
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytrace_ebpf import extras, processors
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel import abilities, tracefs
from pytrace_ebpf.record.rights.debugging import rootless

SYSTEM_HEADERS = Path("/var/lib/pytrace-ebpf/headers")  # made by doctor --fix and scripts/setup.sh
PACKED_HEADERS = Path("/sys/kernel/kheaders.tar.xz")
FIX = "sudo pytrace-ebpf doctor --fix"
_CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39}
_LIBRARIES = Path("/usr/lib")
_DISTRIBUTIONS_BCC = ("python3/dist-packages/bcc/__init__.py", "python3.*/site-packages/bcc/__init__.py")  # Debian and Ubuntu; the others
_HOST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO


@dataclass(frozen=True)
class Finding:
    """One condition: a sentence about it, and the command that fixes it ("" for none)."""

    subject: str
    ok: Literal["ok", "warning", "problem"]
    sentence: str
    fix: str = ""
    about: Literal["host", "target"] = "host"


def findings() -> list[Finding]:
    """Everything about this host that tracing depends on."""
    return list(_findings())


def require_ebpf() -> None:
    """Raise HostError for the first condition that makes tracing impossible here."""
    for finding in _findings(warnings=False):
        if finding.ok == "problem":
            raise HostError(finding.sentence + (f"; to fix it: {finding.fix}" if finding.fix else ""))


def require_machine() -> None:
    """Raise HostError where nothing can be recorded, by eBPF or without."""
    if (machine := _machine()).ok == "problem":
        raise HostError(machine.sentence)


def header_tree() -> Path | None:
    """The kernel headers to give BCC as BCC_KERNEL_SOURCE, None where it has to look for itself.

    Debian splits /lib/modules/RELEASE/build in two trees. BCC finds both by itself, but not when it is given one.
    """
    named = os.environ.get("BCC_KERNEL_SOURCE")
    if named:
        return Path(named)
    if _is_folder(_modules_tree()):
        return None
    trees = [SYSTEM_HEADERS]
    if os.geteuid():  # what root compiles must be root's, and HOME can be that of the user who called sudo
        trees.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytrace-ebpf" / "headers")
    for tree in trees:
        if _is_folder(tree / "include" / "linux"):
            return tree
    return None


def capabilities() -> frozenset[str]:
    """Those effective capabilities of this process that matter to tracing."""
    status = Path("/proc/self/status").read_text()
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    bits = int(match[1], 16) if match else 0
    return frozenset(name for name, bit in _CAPABILITIES.items() if bits >> bit & 1)


def _findings(warnings: bool = True) -> Iterator[Finding]:
    """Without `warnings` not those that can be no problem: what is tried for some of them takes a tenth of a second."""
    yield (machine := _machine())
    if machine.ok == "problem":
        return
    yield (privileges := _privileges())
    yield _namespaces()
    yield _paranoid()
    yield (lockdown := _lockdown())
    if "problem" not in (privileges.ok, lockdown.ok):
        yield from _abilities(warnings)
    yield _btf()
    yield _uprobes()
    if warnings:
        yield _tracefs()
    yield _bcc()
    yield _headers()
    yield _packages()
    if not warnings:
        return
    works, sentence = rootless()
    yield Finding("rootless", "ok" if works else "warning", sentence)


def _machine() -> Finding:
    machine, system = platform.machine(), platform.system()
    if system != "Linux" or (processor := processors.of(machine)) is None:
        return Finding("machine", "problem", f"recording needs Linux on {processors.NAMES}, and this is {system} on {machine}")
    return Finding("machine", "ok", f"this is Linux on {processor.name}")


def _abilities(warnings: bool) -> Iterator[Finding]:
    for ability in abilities.ABILITIES:
        if not (ability.needed or warnings):
            continue
        if why := abilities.why_not(ability):
            yield Finding(ability.subject, "problem" if ability.needed else "warning", f"{ability.lacks}, as a try shows: {why}")
            if ability.needed:
                return  # those behind it would fail for the same reason
        else:
            yield Finding(ability.subject, "ok", f"{ability.has}, as a try shows")


def _privileges() -> Finding:
    held = capabilities()
    user_map = Path("/proc/self/uid_map").read_text().split()
    if user_map[:2] != ["0", "0"]:
        return Finding(
            "privileges",
            "problem",
            "this is a user namespace, whose root may not load BPF programs",
            "run it on the host, as root",
        )
    if "CAP_SYS_PTRACE" not in held or not ("CAP_SYS_ADMIN" in held or {"CAP_BPF", "CAP_PERFMON"} <= held):
        missing = ", ".join(sorted({"CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"} - held))
        return Finding(
            "privileges",
            "problem",
            f"this user may not load BPF programs (it lacks {missing})",
            "sudo pytrace-ebpf ...",
        )
    who = "root" if os.geteuid() == 0 else "this user"
    return Finding("privileges", "ok", f"{who} may load BPF programs and read other processes ({', '.join(sorted(held))})")


def _namespaces() -> Finding:
    if str(Path("/proc/self/ns/pid").readlink()) != _HOST_PID_NAMESPACE:
        return Finding(
            "namespace", "problem", "the tracer runs in a container's pid namespace, while the kernel reports the host's process ids",
            "run it on the host, or in a container started with --pid=host",
        )  # fmt: skip
    return Finding("namespace", "ok", "process ids here are the host's")


def _paranoid() -> Finding:
    value = _line("/proc/sys/kernel/perf_event_paranoid")
    if value and int(value) > 1 and not capabilities() & {"CAP_PERFMON", "CAP_SYS_ADMIN"}:
        return Finding(
            "perf events",
            "problem",
            f"perf_event_paranoid is {value}, which keeps this user from attaching probes",
            "sudo pytrace-ebpf ...",
        )
    return Finding("perf events", "ok", f"perf_event_paranoid is {value or 'not there'}, which does not hinder this user")


def _lockdown() -> Finding:
    match = re.search(r"\[(\w+)\]", _line("/sys/kernel/security/lockdown"))
    mode = match[1] if match else "none"
    if mode == "confidentiality":
        return Finding(
            "lockdown", "problem", "the kernel is locked down (confidentiality) and refuses tracing",
            "boot without lockdown=confidentiality",
        )  # fmt: skip
    return Finding("lockdown", "ok", f"kernel lockdown is {mode}, which lets programs be traced")


def _btf() -> Finding:
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return Finding(
            "BTF", "problem", "the kernel has no type information (/sys/kernel/btf/vmlinux)",
            "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y, as every distribution's is",
        )  # fmt: skip
    return Finding("BTF", "ok", "the kernel brings its type information (BTF)")


def _uprobes() -> Finding:
    uprobe = Path("/sys/bus/event_source/devices/uprobe")
    if not (uprobe / "type").exists():
        return Finding("uprobes", "problem", "the kernel has no uprobes", "boot a kernel built with CONFIG_UPROBE_EVENTS=y")
    if not (uprobe / "format" / "ref_ctr_offset").exists():
        return Finding("uprobes", "problem", "the kernel's uprobes cannot raise a probe's semaphore", "boot kernel 4.20 or newer")
    return Finding("uprobes", "ok", "uprobes are there and can raise semaphores (ref_ctr_offset)")


def _tracefs() -> Finding:
    # Only root may look into it, as a rule; and root has no need of its being mounted.
    if any(_is_folder(place / "events") or os.path.ismount(place) for place in tracefs.PLACES) or _reads_tracefs():
        return Finding("tracefs", "ok", "the kernel's list of tracepoints can be read (tracefs)")
    return Finding("tracefs", "warning", f"tracefs is not mounted at {tracefs.TRACEFS}, so --faults may not see how resident memory grows", FIX)


def _reads_tracefs() -> bool:
    with suppress(OSError):
        return bool(tracefs.read("events/kmem/rss_stat/id"))
    return False


def bcc() -> Path | None:
    """bcc's __init__.py: this Python's or else the distribution's, which serves any Python, as it is written in Python alone."""
    found = importlib.util.find_spec("bcc")
    if found is not None and found.origin:
        return Path(found.origin)
    return next((path for pattern in _DISTRIBUTIONS_BCC for path in sorted(_LIBRARIES.glob(pattern))), None)


def _bcc() -> Finding:
    found = bcc()
    if found is None:
        return Finding("BCC", "problem", "bcc's Python bindings are not installed on this host", FIX)
    return Finding("BCC", "ok", f"bcc's Python bindings are in {found.parent}")


def _headers() -> Finding:
    tree = header_tree() or _modules_tree()
    if _is_folder(tree):
        return Finding("headers", "ok", f"kernel headers are in {tree}")
    if PACKED_HEADERS.exists():
        # BCC would unpack them to /tmp, and take a folder of that name which somebody else made (CVE-2024-2314).
        return Finding("headers", "problem", "kernel headers are packed in the kernel itself and not unpacked yet", FIX)
    if os.environ.get("BCC_KERNEL_SOURCE"):
        return Finding("headers", "problem", f"BCC_KERNEL_SOURCE names {tree}, which is no folder", "unset BCC_KERNEL_SOURCE")
    return Finding("headers", "problem", "BCC finds no kernel headers (those of any version serve)", FIX)


def _packages() -> Finding:
    for name in ("capstone", "cxxfilt", "psutil"):
        if importlib.util.find_spec(name) is None:
            return Finding("packages", "problem", f"recording needs the Python package {name}, which is not installed", extras.install("record"))
    return Finding("packages", "ok", "the Python packages that recording needs are installed")


def _modules_tree() -> Path:
    return Path("/lib/modules") / platform.release() / "build"


def _is_folder(path: Path) -> bool:
    """Whether this user finds a folder there: Path.is_dir() raises where that user may not look."""
    return os.path.isdir(path)  # noqa: PTH112


def _line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
