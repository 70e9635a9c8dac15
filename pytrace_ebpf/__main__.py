"""`python -m pytrace_ebpf`: the command line."""

import sys

from pytrace_ebpf.cli.main import main

sys.exit(main())
