#!/bin/bash
# Trace the order service and report: with eBPF where this host lets us, else with what an ordinary user may have.
set -euo pipefail
cd "$(dirname "$0")/../.."

TRACE=.build/demo
PYTHON=/usr/bin/python3
[ -x $PYTHON ] || PYTHON=$(readlink -f .venv/bin/python)

tracer=(.venv/bin/pytrace-ebpf)
if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null; then
    tracer=(sudo env PYTHONDONTWRITEBYTECODE=1 "${tracer[@]}")
fi

options=()
if ! findings=$("${tracer[@]}" doctor); then
    why=$(sed -n 's/^problem *[^:]*: //p' <<<"$findings" | head -n 1)
    echo "demo: no eBPF here, so the demo takes run --rootless, which cannot distinguish waits: ${why:-this user may not become root}" >&2
    tracer=(.venv/bin/pytrace-ebpf)
    options=(--rootless)
fi

rm -rf $TRACE 2>/dev/null || sudo rm -rf $TRACE # root's, from a run with eBPF
"${tracer[@]}" run "${options[@]}" --output $TRACE -- "$PYTHON" scripts/demo/orders.py
"${tracer[@]}" report $TRACE
