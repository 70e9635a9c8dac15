"""The colours of terminals, pictures and pages that are not those of a state alone (trace/states.py)."""

from pytrace_ebpf.trace.states import BY_NAME

ON_CPU, RUN_QUEUE, GIL_WAIT, BLOCKED = (BY_NAME[name].colour for name in ("on_cpu", "runq_wait", "gil_wait", "blocked"))
UNKNOWN = "#8c8c8c"
WORKERS = "#7fcfb8"  # on a core, but for somebody else
