"""Compile each file of probes/ for a kernel that does not run here, where its machine will look for them: compile.py RELEASE, in a chroot that has its headers."""

import platform
import sys

from pytrace_ebpf import processors
from pytrace_ebpf.errors import HostError
from pytrace_ebpf.record.kernel import bpf_object, probe_sources

platform.release = lambda: sys.argv[1]
OF = {"blocks.c": "--native-memory", "native.c": "--layers"}  # which not every processor has
for source in sorted(probe_sources.probes_directory().glob("*.c")):
    if OF.get(source.name) in processors.here().lacks:
        continue
    try:
        bpf_object.compiled(source.name)
    except HostError as error:  # what asks for it says so there, too
        print(f"{source.name}: {error}", file=sys.stderr)
