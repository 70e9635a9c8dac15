"""The states of a thread that a call's time consists of, each described once: its columns, its looks, its words."""

from dataclasses import dataclass

# Which of a call's states are known together, as in enum known of rebuild/timeline.h: perf does not say what a thread
# waited for, CPU time not always how long it was in the run queue.
ON_CPU, RUN_QUEUE, WAITS = 1, 2, 4
SYSCALL_UNKNOWN = -2  # of `syscall` in sched and samples


@dataclass(frozen=True)
class State:
    """One state; its place in STATES is its number, as in STATES of rebuild/common.h, which decides when a thread is in it.

    name     as the trace has it; its columns are name_ns and self_name_ns
    known    with which other states it is known: ON_CPU, RUN_QUEUE or WAITS
    meaning  of its column in `calls`
    label    in legends
    title    of a column that is as narrow as the figures in it
    phrase   in a sentence
    glyph    in a bar, and where only ASCII can be shown; they differ also without colour
    colour   in terminals, pictures and pages
    """

    name: str
    known: int
    meaning: str
    label: str
    title: str
    phrase: str
    glyph: str
    ascii_glyph: str
    colour: str


# Colours after Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), its lightest made darker for a white background:
# distinct to the colour-blind, and visible on dark and on light.
STATES = (
    State(
        "on_cpu", ON_CPU, "the thread had a core; wall_ns less this is off the core, whether or not the parts of that are known. Source cputime: an estimate",
        "on CPU", "on CPU", "on a core", "█", "#", "#009e73",
    ),
    State(
        "runq_wait", RUN_QUEUE,
        "the thread was runnable and waited for a core. Source perf: null, as the waits below are, for a call in which the thread left its core by itself; "
        "else exact. Source cputime: an estimate, null where the kernel does not count it",
        "run queue", "run q.", "in the run queue", "▒", "=", "#c98a00",
    ),
    State(
        "gil_wait", WAITS, "the thread was blocked on the GIL; source cputime: null",
        "GIL wait", "GIL", "waiting for the GIL", "×", "x", "#d55e00",
    ),
    State(
        "blocked", WAITS, "the thread was blocked on anything else; source cputime: null",
        "blocked", "blocked", "blocked", "·", ".", "#3a8fc7",
    ),
)  # fmt: skip
NAMES = tuple(state.name for state in STATES)
SPLIT = tuple(f"{name}_ns" for name in NAMES)
BY_NAME = {state.name: state for state in STATES}
