"""pytrace-ebpf with one stream more: where it is listed is all that differs."""

import sys

from pytrace_ebpf.trace import declared
from tests.unit.beats.declaration import STREAM

declared.STREAMS = (*declared.STREAMS, STREAM)

if __name__ == "__main__":
    from pytrace_ebpf.cli import main

    sys.exit(main.main())
