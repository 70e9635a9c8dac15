"""Compile each file of probes/ for a kernel that does not run here, where its machine will look for them.

compile.py RELEASE                 in a chroot that has its headers
compile.py RELEASE MACHINE KEPT    for another processor, on this host: BCC_KERNEL_SOURCE and ARCH say which headers; below KEPT they are kept
"""

import platform
import sys
from pathlib import Path

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel import bpf_object, host, probe_sources, program_cache

OF = {"blocks.c": "--native-memory", "native.c": "--layers"}  # which not every processor has

release, *elsewhere = sys.argv[1:]
platform.release = lambda: release
if elsewhere:
    machine, kept = elsewhere
    platform.machine = lambda: machine
    host.header_tree = lambda: None  # as that machine finds them
    program_cache._ROOT = Path(kept)
for source in sorted(probe_sources.probes_directory().glob("*.c")):
    if OF.get(source.name) in processors.of_trace(platform.machine()).lacks:
        continue
    try:
        bpf_object.compiled(source.name)
    except HostError as error:  # what asks for it says so there, too
        print(f"{source.name}: {error}", file=sys.stderr)
