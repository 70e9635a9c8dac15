"""What this kernel lacks of what scheduling and samples are read by: tracepoints, by attaching to them, and fields, by its type information."""

import os
from dataclasses import dataclass

from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel import system_calls
from pytrace_ebpf.record.kernel.abilities import calling
from pytrace_ebpf.record.kernel.btf import KernelTypes
from pytrace_ebpf.record.sampling.fields import fields as fields_of_samples
from pytrace_ebpf.record.scheduling import quota, resources, sched
from pytrace_ebpf.record.scheduling.tracepoints import EXACT, TRACEPOINTS, WITHOUT


@dataclass(frozen=True)
class Lack:
    """Something that is not there, and what there is not without it; `needed`: nothing is recorded."""

    subject: str
    sentence: str
    needed: bool = False


def lacks() -> list[Lack]:
    """All of it. Raises HostError where the kernel lets nobody try."""
    program = system_calls.load_program("tried", system_calls.RAW_TRACEPOINT, calling())
    try:
        found = [
            Lack("switches", f"this kernel does not report what scheduling is: it has no tracepoint {name}", True)
            for name in EXACT
            if not _is_there(name, program)
        ][:1]
        found += [Lack(each, WITHOUT[each]) for each, names in TRACEPOINTS.items() if not all(_is_there(name, program) for name in names)]
    finally:
        os.close(program)
    return found + _fields(KernelTypes())


def _is_there(tracepoint: str, program: int) -> bool:
    try:
        os.close(system_calls.open_raw_tracepoint(tracepoint, program))
    except FileNotFoundError:
        return False
    except OSError:  # refused for another reason, which a recording says
        pass
    return True


def _fields(kernel: KernelTypes) -> list[Lack]:
    found: list[Lack] = []
    try:
        known = sched.fields(kernel)
    except HostError as error:
        return [Lack("fields", str(error), True)]
    if not known["ends_known"]:
        found.append(Lack("ends", "the kernel's type information lacks how a process ends, so that exit codes are those of children alone"))
    if not known["task_thread_pid"]:
        found.append(Lack("ids", "the kernel's type information lacks a thread's number in its container, so that it is known by the host's alone"))
    if not resources.settings(kernel)["resources_known"]:
        found.append(Lack("resources", resources.NOT_KNOWN))
    if not quota.settings(kernel)["quota_known"]:
        found.append(Lack("quota", quota.NOT_KNOWN))
    try:
        fields_of_samples(kernel)
    except HostError as error:
        found.append(Lack("sample fields", f"there is no --sample, no daemon and no top: {error}"))
    if kernel.offset("sched_info", "run_delay") is None:
        found.append(
            Lack(
                "run delay",
                "the kernel does not count how long threads wait for a core, so that beside samples every switch is recorded to say what they waited for",
            )
        )
    return found
