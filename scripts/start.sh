#!/bin/bash
# The program that starts an installation: start.sh FOLDER, where its Python packages lie, writes it to stdout.
set -euo pipefail
# -I: whatever the caller's directory, environment or home holds, root must not import it.
cat <<END
#!/usr/bin/python3 -I
import sys

sys.path.insert(0, "$1")
from pytrace_ebpf.cli.main import main

sys.exit(main())
END
