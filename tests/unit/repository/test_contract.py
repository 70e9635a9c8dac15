"""The numbers that C and Python must agree on."""

import ctypes
import re
import struct
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytrace_ebpf import processors
from pytrace_ebpf.analyze.functions.named_layers import ORDER
from pytrace_ebpf.derive.calls import rows as call_rows
from pytrace_ebpf.derive.scheduling import off_core
from pytrace_ebpf.options import trigger
from pytrace_ebpf.rebuild import answers, decoding, engine, triggers
from pytrace_ebpf.rebuild import library as rebuild
from pytrace_ebpf.rebuild import states as rebuilt_states
from pytrace_ebpf.record.agent import agent_library as agent
from pytrace_ebpf.record.agent import arena
from pytrace_ebpf.record.cost.budget import MOST_OUT
from pytrace_ebpf.record.cpython import frames, lines, objects, parking, variables
from pytrace_ebpf.record.cpython import values as values_read
from pytrace_ebpf.record.cpython.gil import HolderPath
from pytrace_ebpf.record.kernel.probe_sources import probes_directory
from pytrace_ebpf.record.kernel.waiting_calls import ON_CHILD, ON_DESCRIPTOR, ON_EPOLL, ON_POLL, ON_SELECT
from pytrace_ebpf.record.native import blocks, code, layers, signature, tensors
from pytrace_ebpf.record.native.parsers import FINDERS
from pytrace_ebpf.record.output import observed_rows, statement_rows
from pytrace_ebpf.record.process import ending
from pytrace_ebpf.record.sampling import native as native_code
from pytrace_ebpf.record.sampling import stacks, stays
from pytrace_ebpf.record.scheduling import quota, resources
from pytrace_ebpf.record.source_selection import sources
from pytrace_ebpf.record.usdt import matching, probes
from pytrace_ebpf.record.usdt import objects as objects_read
from pytrace_ebpf.rules import calls as rules_calls
from pytrace_ebpf.trace import client_functions
from pytrace_ebpf.trace import layers as described
from pytrace_ebpf.trace.observed import VALUE_STATUSES, WHATS
from pytrace_ebpf.trace.schema import (
    EVENTS,
    LAYERS,
    LOSS_CLASSES,
    MEANINGS,
    OBJECT_LOCK,
    OTHER_GIL,
    PAUSED,
    STATUSES,
    SYSCALL_UNKNOWN,
    CallKind,
    Effect,
    SchedKind,
)
from pytrace_ebpf.trace.states import NAMES, STATES
from tests.unit.agent_pythons import built

PROBES = probes_directory()
REBUILD = Path(rebuild.__file__).parent


def value(expression: str, known: dict[str, int]) -> int:
    return int(eval(re.sub(r"\b(0x[0-9a-f]+|\d+)(?:u|ull|ULL)\b", r"\1", expression), {}, known))


@cache
def text(path: Path) -> str:
    return re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


@cache
def numbers(path: Path, known: tuple[tuple[str, int], ...] = ()) -> dict[str, int]:
    """Every constant of a C file: by #define where that is a number, or of an enum; `known`: of what it includes."""
    found = dict(known)
    for name, expression in re.findall(r"^#define (\w+) +(\(?[\d(][\w()<>+* -]*)$", re.sub(r" +$", "", text(path), flags=re.MULTILINE), re.MULTILINE):
        found[name] = value(expression, found)
    for name, expression in re.findall(r"^#define (\w+) (\([A-Z][\w()<>+* -]*\)) *$", text(path), re.MULTILINE):
        found[name] = value(expression, found)
    for members in re.findall(r"enum(?: \w+)? \{(.*?)\}", text(path), re.DOTALL):
        members = re.sub(r"#define STATE\(.*?#undef STATE\n", "".join(f"{number}," for number, *_ in states_in_c()), members, flags=re.DOTALL)
        next_one = 0
        for member in filter(None, (each.strip() for each in members.split(","))):
            name, _, expression = (part.strip() for part in member.partition("="))
            next_one = value(expression, found) if expression else next_one
            found[name], next_one = next_one, next_one + 1
    return found


@cache
def engine_headers() -> str:
    return "\n".join(text(path) for path in sorted(REBUILD.glob("*.h")))


@cache
def engine_numbers() -> dict[str, int]:
    """Every constant of the engine's headers."""
    found: dict[str, int] = {}
    for path in [REBUILD / "common.h", REBUILD / "timeline.h", *sorted(REBUILD.glob("*.h"))]:
        found |= numbers(path, tuple(found.items()))
    return found


@cache
def states_in_c() -> list[tuple[str, str, str]]:
    """(number, name, known) of STATES."""
    (listed,) = re.findall(r"#define STATES\(STATE\) \\\n(.*)\n", text(REBUILD / "common.h"))
    return re.findall(r"STATE\((\w+), (\w+), (\w+)\)", listed)


def named(path: Path) -> set[str]:
    """What a C file calls its constants."""
    members = [name for body in re.findall(r"enum(?: \w+)? \{(.*?)\}", text(path), re.DOTALL) for name in re.findall(r"^ *(\w+)|, *(\w+)", body)]
    return {*re.findall(r"^#define (\w+) +(?!__)", text(path), re.MULTILINE), *(name for pair in members for name in pair if name)}


def prefixed(path: Path, prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): number for name, number in numbers(path).items() if name.startswith(prefix)}


@pytest.mark.parametrize(("prefix", "kind", "elsewhere"), [("CALL_", CallKind, set()), ("SCHED_", SchedKind, {"SNAPSHOT"})])
def test_kinds(prefix: str, kind: type[CallKind | SchedKind], elsewhere: set[str]) -> None:
    assert prefixed(PROBES / "events.h", prefix) == {member.name: member.value for member in kind if member.name not in elsewhere}
    rebuilt = engine_numbers()
    assert {member.name: rebuilt[member.name] for member in kind} == {member.name: member.value for member in kind}
    assert rebuilt[f"{prefix}KINDS"] == len(kind)


def test_every_kind_has_a_meaning_and_the_library_sets_the_same() -> None:
    assert list(MEANINGS) == list(CallKind)
    events = (REBUILD / "events.c").read_text()
    (body,) = re.findall(r"flags_of\[CALL_KINDS\] = \{(.*?)\}", events)
    sets = {CallKind[kind]: flag.lower() for kind, flag in re.findall(r"\[(\w+)\] = (\w+)", body)}
    assert sets == {kind: meaning.sets for kind, meaning in MEANINGS.items() if meaning.sets and meaning.effect is not Effect.CLEARS}


def test_states() -> None:
    """STATES of common.h is that of trace/states.py, and no state is described anywhere else."""
    c = engine_numbers()
    assert [(c[number], name, c[known]) for number, name, known in states_in_c()] == [
        (at, state.name, state.known) for at, state in enumerate(STATES)
    ]
    of_others = ("OFF", "UNKNOWN", "READY", "SLEPT", "UNSEEN", "GONE")
    assert [c[name] for name in of_others] == [getattr(rebuilt_states, name) for name in of_others]
    c_of_exits = numbers(PROBES / "events.h")
    assert (c_of_exits["EXIT_FOR_MEMORY"], c_of_exits["EXIT_KNOWN"]) == (ending.OUT_OF_MEMORY, ending.KNOWN)
    assert (c["HAS_COUNTS"], c["HAS_SELF_ON_CPU"], c["HAS_ON_CPU"] << call_rows._OF_SELF) == (call_rows._HAS_COUNTS, 16, 16)
    labels = {state.label for state in STATES if " " in state.label} | {state.colour for state in STATES}
    package = REBUILD.parent
    for path in [*package.rglob("*.py"), *package.rglob("*.html")]:
        if path != package / "trace" / "states.py":
            assert not [label for label in labels if f'"{label}"' in path.read_text()], path
    assert rebuild.NODE["total"].names == ("wall", *NAMES, "unknown_wall", "unknown", "unsplit_runq", "unsplit_waits")


def test_the_numbers_of_the_library() -> None:
    c = engine_numbers()
    assert (c["LOST"], c["DROPPED"]) == (rebuilt_states.LOST, rebuilt_states.DROPPED)
    assert (c["ENDS"], 0xFFFFFFFF) == (rebuild.ENDS, rebuild.NO_THREAD) and "define NO_THREAD UINT32_MAX" in engine_headers()
    assert c["NO_ANSWER"] == rebuild.NO_ANSWER
    assert (c["LIBRARY"], c["FOREIGN"], c["EVENT_LOOP"]) == (answers.LIBRARY, answers.FOREIGN, answers.EVENT_LOOP)
    assert (c["ROWS_OF_SUSPENDED"], c["ROWS"], c["NO_ROWS"]) == (0, engine._ROWS, engine._NO_ROWS)
    assert [c[name] for name in ("CHARGES", "GONE_SINCE", "PEAK", "LEVEL")] == [rebuild.CHARGES, rebuild.GONE_SINCE, rebuild.PEAK, rebuild.LEVEL]
    assert (c["RESUMED"], c["YIELDED"]) == (call_rows._RESUMED, call_rows._YIELDED) == (rules_calls.RESUMED, rules_calls.YIELDED)
    assert (c["OPEN_AT_END"], c["OPEN_AT_START"]) == (rules_calls.OPEN_AT_END, rules_calls.OPEN_AT_START)
    assert c["THREAD_BITS"] == call_rows.THREAD_BITS
    assert {c[name] for name in ("NO_MEMORY", "STRANGE_KIND", "STRANGE_STATE")} == set(engine._ERRORS) and c["FINE"] == 0
    in_states = numbers(REBUILD / "states.c")
    assert (in_states["SYSCALL_UNKNOWN"], in_states["FUTEX"]) == (SYSCALL_UNKNOWN, parking.FUTEX)
    assert numbers(PROBES / "events.h")["SYSCALL_UNKNOWN"] == SYSCALL_UNKNOWN
    assert numbers(PROBES / "events.h")["HOLDER_UNKNOWN"] == off_core.HOLDER_UNKNOWN
    assert [numbers(PROBES / "events.h")[name] for name in ("PAUSED", "OBJECT_LOCK", "OTHER_GIL")] == [PAUSED, OBJECT_LOCK, OTHER_GIL]
    (order,) = re.findall(r"order\[\] = \{(.*?)\n    \};", text(REBUILD / "calls.c"), re.DOTALL)
    assert {flag.lower(): int(status) for flag, status in re.findall(r"\{(\w+), (\d)\}", order)} == {
        status: number for number, status in enumerate(STATUSES) if status != "complete"
    }


@pytest.mark.parametrize(("name", "mirror"), [("switches", rebuild.Switches), ("cputimes", rebuild.CpuTimes), ("events", rebuild.Events)])
def test_columns_that_the_library_takes(name: str, mirror: type[ctypes.Structure]) -> None:
    (body,) = re.findall(rf"struct {name} \{{(.*?)\}};", engine_headers(), re.DOTALL)
    columns = [each.strip().lstrip("*") for _, names in re.findall(r"const (\w+) ([^;]+);", body) for each in names.split(",")]
    short = {"func_id": "func", "on_cpu_ns": "on_cpu", "runq_wait_ns": "runq_wait"}
    assert [short.get(field, field) for field, *_ in mirror._fields_] == [*columns, "rows"]


def test_operands_as_the_probes_read_them() -> None:
    (body,) = re.findall(r"struct operand \{(.*?)\};", text(PROBES / "operands.h"), re.DOTALL)
    assert len(re.findall(r";", body)) == len(probes._UNKNOWN)
    (gil,) = re.findall(r"struct gil \{(.*?)\};", text(PROBES / "sched.c"), re.DOTALL)
    assert re.findall(r"(\w+);", gil) == [field.name for field in fields(HolderPath)]


def test_frames_of_samples() -> None:
    events, rules, c = text(PROBES / "events.h"), numbers(PROBES / "unwind.h"), text(PROBES / "samples.c")
    flags = {name: 1 << int(bit) for name, bit in re.findall(r"define (FRAME_\w+) \(1ULL << (\d+)\)", events)}
    assert flags == {"FRAME_NATIVE": native_code.FRAME_NATIVE, "FRAME_ENTERED": stacks.FRAME_ENTERED}
    assert numbers(PROBES / "events.h")["NATIVE_WHOLE"] == stacks.NATIVE_WHOLE
    assert rules["UNWIND_RSP"] << 24 | 1 == processors.PROCESSORS["x86_64"].code.at_call  # kind is the last byte of a row
    assert int(re.findall(r"MOST_SPANS (\d+)", c)[0]) == native_code._MOST_SPANS and "MOST_RULES (1 << 23)" in c
    assert native_code._MOST_ROWS == 1 << 23 and int(re.findall(r"MOST_FILES (\d+)", c)[0]) > native_code._MOST_FILES


def test_places_of_threads_that_are_sampled() -> None:
    assert numbers(PROBES / "off_cpu.h")["PLACES"] == stays._PLACES
    (mix,) = re.findall(r"define MIX (0x\w+)ULL", text(PROBES / "common.h"))
    assert int(mix, 16) == lines._MIX


def test_what_is_waited_for() -> None:
    c = numbers(PROBES / "descriptors.h")
    calls = (ON_DESCRIPTOR, ON_EPOLL, ON_POLL, ON_SELECT, ON_CHILD)
    assert calls == tuple(c[f"ON_{name}"] for name in ("DESCRIPTOR", "EPOLL", "POLL", "SELECT", "CHILD")) and c["ON_NOTHING"] == 0
    settings = PROBES / "resource_settings.h"
    assert numbers(settings)["WAITS_ON"] == resources._WAITS_ON > max(max(each.calls.values()) for each in processors.PROCESSORS.values())
    assert numbers(PROBES / "resources.h")["LISTENING"] == resources.LISTENS
    assert numbers(PROBES / "events.h")["CHILD"] == resources._CHILD
    assert re.findall(r"define PATH_WHOLE (0x\w+)", text(PROBES / "events.h")) == [hex(resources._WHOLE)]
    fields_of_c = set(re.findall(r"\b(\w+)[,;]", re.findall(r"__u32 resources_known.*?__u8", text(settings), re.DOTALL)[0]))
    groups = (resources._NEEDED, resources._OF_UNIX, resources._OF_EPOLL, resources._OF_SEVERAL, resources._OF_PEERS)
    assert fields_of_c == {"resources_known"}.union(*groups)
    of_quota = set(re.findall(r"\b(\w+)[,;]", re.findall(r"__u32 quota_known.*?RESOURCE_SETTINGS", text(PROBES / "sched.c"), re.DOTALL)[0]))
    assert of_quota == set(quota._FIELDS)


def test_what_wakes_a_thread() -> None:
    c = numbers(PROBES / "events.h")
    assert c["BY_TIMER"] | c["BY_SOFTIRQ"] == off_core._BY_TIMER and not off_core._BY_TIMER & c["BY_DEVICE"]


def test_users_who_share() -> None:
    assert numbers(PROBES / "common.h")["EVERYBODY"] == blocks._EVERYBODY


def test_every_constant_that_c_and_python_share_is_checked() -> None:
    """`alike`: has the same name by chance. The families are checked above; CPYTHON_ Python reads from the header itself."""
    alike = {
        "ANONYMOUS",
        "BLOCKED",
        "FIRST",
        "GIL",
        "IMPORTS",
        "LEFT_OUT",
        "NONE",
        "NOTHING",
        "OF_RESOURCES",
        "OF_SAMPLES",
        "OUT",
        "PARTS",
        "PLACES",
        "SETTINGS",
        "SETTLED",
        "WRAPPED",
    }
    ours = {token for path in REBUILD.parent.rglob("*.py") for token in re.findall(r"\b_?([A-Z][A-Z0-9_]+)\b", path.read_text())}
    checked, families = Path(__file__).read_text(), ("VALUE_", "CALL_", "SCHED_", "LOSS_", "LAYER_", "ARENA_", "CHUNK_", "CPYTHON_")
    headers = [*PROBES.glob("*.h"), *(PROBES / "agent").glob("*.h"), *REBUILD.glob("*.h")]
    kinds = {member.name for kind in (CallKind, SchedKind) for member in kind} | {number for number, *_ in states_in_c()}
    shared = {name: path.name for path in headers for name in named(path) - alike - kinds if name in ours and not name.startswith(families)}
    assert {name: path for name, path in shared.items() if not re.search(rf"\b{name}\b", checked)} == {}


def test_loss_classes() -> None:
    counters = prefixed(PROBES / "events.h", "LOSS_")
    assert counters.pop("CLASSES") == len(LOSS_CLASSES)
    assert counters == {name.upper(): index for index, name in enumerate(LOSS_CLASSES)}


def test_layers() -> None:
    in_c = prefixed(PROBES / "events.h", "LAYER_")
    assert in_c == {name.upper(): LAYERS.index(name) for name in ("python", "gc", "import", "c")}
    assert {in_c["GC"], in_c["IMPORT"], in_c["C"]} == arena._NOT_PYTHON
    assert numbers(PROBES / "agent" / "c_names.h")["TYPE_FLAGS"] == objects._TYPE_FLAGS


def test_every_layer_is_described_whole() -> None:
    assert set(FINDERS) == {layer.name for layer in described.NATIVE}
    assert all(layer.option and layer.loaded and layer.title for layer in described.NATIVE)
    assert not any(layer.option or layer.loaded for layer in described.LAYERS if layer not in described.NATIVE)
    assert set(ORDER) == {"module", *LAYERS}


def test_the_agents_arena() -> None:
    c = numbers(PROBES / "agent" / "agent.h")
    for prefix, names in {"ARENA_": ("STARTING", "ACTIVE", "QUIET", "REFUSED"), "CHUNK_": ("FREE", "WRITING", "FULL", "TABLE", "SIZE")}.items():
        assert {name: c[prefix + name] for name in names} == {
            name: getattr(arena, name if prefix + name not in vars(arena) else prefix + name) for name in names
        }
    assert (c["COMMAND_RECORD"], c["COMMAND_STOP"]) == (arena.RECORD, arena.STOP)
    assert (c["CLOCK_IS_TSC"], c["CLOCK_IS_MONOTONIC"]) == (agent.TSC, agent.MONOTONIC)
    streams = ("CALLS", "VALUES", "ALLOCATIONS", "OPCODES")
    assert [c[f"STREAM_{name}"] for name in streams] == [getattr(arena, name) for name in streams] == list(range(c["STREAMS"]))
    assert (c["NAME"], c["INTERPRETER"], c["FORM_UNKNOWN"]) == (arena.NAME, arena.INTERPRETER, 0)
    assert (c["MOST_LEFT_OUT"], arena.EVERYTHING) == (MOST_OUT, 2**32 - 1)
    assert [c[name] for name in ("MOST_CHUNKS", "FUNCTIONS_START", "CHUNKS_START")] == [arena.MOST_CHUNKS, arena.FUNCTIONS_START, arena.CHUNKS_START]
    assert re.findall(r"ARENA_MAGIC (0x[0-9a-f]+)ull", text(PROBES / "agent" / "agent.h")) == [hex(arena.MAGIC)]
    assert numbers(PROBES / "agent" / "options.h")["MOST_CHUNK_RECORDS"] * arena._EVENT == arena._MOST_CHUNK_BYTES
    assert numbers(PROBES / "agent" / "arena.h")["LAST_FUNCTION"] == arena._LAST_FUNCTION
    assert 3 * (numbers(PROBES / "agent" / "functions.c")["LONGEST"] + 1) + arena._RECORD.size + 7 <= arena._LONGEST_RECORD


def numbers_of_letters(header: Path) -> dict[str, str]:
    return dict(re.findall(r"\b([A-Z_]+)(?: =)? '(\w)'", text(header)))


def test_the_agents_values() -> None:
    c = numbers(PROBES / "agent" / "agent.h")
    kinds = ("OTHER", "NONE", "BOOL", "INT", "NEGATIVE", "FLOAT", "TEXT", "BYTES", "SIZED", "ARRAY", "TENSOR")
    assert [c[f"VALUE_{name}"] for name in kinds] == [getattr(observed_rows, name) for name in kinds] and c["VALUE_KINDS"] == observed_rows.KINDS
    assert [c[f"VALUE_{name.upper()}"] for name in WHATS] == list(range(c["VALUE_WHATS"]))
    assert c["VALUE_STATEMENT"] == statement_rows.STATEMENT
    how = numbers_of_letters(PROBES / "agent" / "statements.h") | numbers_of_letters(PROBES / "agent" / "options.h")
    ours = ("SQL", "POSTGRES", "MYSQL", "URL", "COMMAND", "WORD", "HEADERS", "SPAN", "OBJECT")
    theirs = ("SQL_OF_ANY", "SQL_OF_POSTGRES", "SQL_OF_MYSQL", "METHOD_AND_URL", "COMMAND", "WORD", "HEADERS", "SPAN", "OBJECT")
    assert [how[name] for name in theirs] == [getattr(client_functions, name) for name in ours]
    assert [c[f"VALUE_{name.upper()}"] for name in VALUE_STATUSES] == list(range(c["VALUE_STATUSES"]))
    assert [getattr(observed_rows, name.upper()) for name in VALUE_STATUSES] == list(range(len(VALUE_STATUSES)))
    assert 4 * c["VALUE_DATA"] == decoding._TEXT_ROOM and re.search(r"#define TEXT_ROOM \(4 \* VALUE_DATA\)", text(REBUILD / "values.c"))


def test_the_objects_that_a_dump_reads_are_those_of_probes() -> None:
    c = numbers(PROBES / "usdt_objects.h") | numbers(PROBES / "usdt_values.h") | numbers(PROBES / "events.h")
    ours = {
        "TENSOR_SIZES": values_read._TENSOR_SIZES,
        "TENSOR_INLINE": values_read._TENSOR_INLINE,
        "SET_SIZE": values_read._SET_SIZE,
        "BYTES_START": values_read._BYTES_START,
        "EXCEPTION_ARGUMENTS": values_read._EXCEPTION_ARGUMENTS,
        "QUALNAME_BEFORE_KEYS": values_read._QUALNAME_BEFORE_KEYS,
        "CELL_CONTENT": variables._CELL_CONTENT,
        "TAKES_MORE": variables._TAKES_MORE,
        "TAKES_MORE_KEYWORDS": variables._TAKES_MORE_KEYWORDS,
    }
    assert {name: c[name] for name in ours} == ours
    assert c["VALUE_DATA"] == values_read.MOST


def test_the_objects_that_probes_read() -> None:
    values, events, c = (
        numbers(PROBES / "agent" / "agent.h"),
        numbers(PROBES / "events.h"),
        numbers(PROBES / "usdt_objects.h") | numbers(PROBES / "usdt_values.h"),
    )
    ours = {name: number for name, number in c.items() if name.startswith("VALUE_")}
    assert ours and all(values[name] == number for name, number in ours.items())
    assert events["OBJECT_NAME"] == objects_read.OBJECT_NAME == values["VALUE_WHATS"]
    assert events["OBJECT_DATA"] == 4 * values["VALUE_DATA"] and 4 * events["OBJECT_TYPE"] == decoding._TYPE_ROOM
    flags = {name: 1 << int(bit) for name, bit in re.findall(r"define (\w+) \(1ULL << (\d+)\)", text(PROBES / "usdt_values.h"))}
    assert flags == {name: getattr(objects_read, name) for name in ("DECIDED", "NOT_OBSERVED", "SECRET_RESULT")}
    assert c["MOST_OBSERVED"] == objects_read.MOST_OBSERVED <= 32
    assert numbers(PROBES / "usdt_matching.h")["STATE_WORDS"] == matching._WORDS
    (body,) = re.findall(r"struct object_layout \{(.*?)\};", text(PROBES / "calls_usdt.c"), re.DOTALL)
    names = [name for names in re.findall(r"__[su](?:32|64) ([^;]+);", body) for name in names.split(", ")]
    assert names[len(probes._OBJECTS) + 1 : -3] == list(probes._OBJECT_LAYOUT)


@built
def test_the_agents_structs() -> None:
    dtypes = agent.Library(agent.agent_library()).dtypes
    assert dtypes["value"] == decoding.VALUE
    assert dtypes["event"].itemsize == arena._EVENT
    assert dtypes["chunk"].itemsize <= arena.CHUNK_SIZE
    values = dict.fromkeys(("observed", "client_calls", "trace_contexts"), dtypes["value"].itemsize)
    sizes = {"events": dtypes["event"].itemsize, **values, "allocations": dtypes["allocations"].itemsize}
    assert sizes == sources._ARENA_BYTES
    function = dtypes["function"]
    of_python = struct.unpack("<IIiI", bytes(range(16)))
    assert np.frombuffer(bytes(range(16)), function)[0].item() == of_python and arena._RECORD.format == "<IIiI"


def test_the_agent_reads_every_option_that_it_is_given() -> None:
    read = set(re.findall(r'strcmp\(line, "(\w+)"\)', text(PROBES / "agent" / "options.c")))
    folder = Path(arena.__file__).parent
    given = set(
        re.findall(
            r'\("(\w+)", ',
            "".join((folder / f"{name}.py").read_text() for name in ("calls", "agent_options", "directory", "allowance", "statements")),
        )
    )
    assert read <= given


@pytest.mark.parametrize(("name", "mirror"), [("decoding", rebuild.Decoding), ("decoded", rebuild.Decoded)])
def test_structs_of_the_decoder(name: str, mirror: type[ctypes.Structure]) -> None:
    types: dict[str, Any] = {
        "int64_t": ctypes.c_int64,
        "double": ctypes.c_double,
        "uint32_t": ctypes.c_uint32,
        "int32_t": ctypes.c_int32,
        "bool": ctypes.c_bool,
    }
    body = re.findall(rf"struct {name} \{{(.*?)\}};", text(REBUILD / "decode.c"), re.DOTALL)[0]
    fields = []
    for kind, names in re.findall(r"(?:const )?(\w+) ([^;]+);", body):
        fields += [(each.strip().lstrip("*"), ctypes.c_void_p if each.strip().startswith("*") else types[kind]) for each in names.split(",")]
    assert fields == mirror._fields_


def test_what_a_flight_recorder_waits_for() -> None:
    c = numbers(REBUILD / "triggers.c")
    assert {name: c[name] for name in ("CALL_TAKES", "LOOP_HELD", "RAISES", "SHARE_WAITED", "TENTHS")} == {
        name: getattr(triggers, name) for name in ("CALL_TAKES", "LOOP_HELD", "RAISES", "SHARE_WAITED", "TENTHS")
    }
    assert c["CONDITIONS"] == triggers.MOST_CONDITIONS == trigger._MOST
    states = engine_numbers()
    assert (states["RUNQ"], states["GIL"]) == (triggers.RUNQ, triggers.GIL)


@pytest.mark.parametrize(("name", "mirror"), [("condition", rebuild.CONDITION), ("hit", rebuild.HIT), ("of_function", rebuild.OF_FUNCTION)])
def test_structs_of_the_triggers(name: str, mirror: np.dtype[Any]) -> None:
    types = {"int64_t": "i8", "int32_t": "i4", "uint32_t": "u4"}
    body = re.findall(rf"struct {name} \{{(.*?)\}};", text(REBUILD / "triggers.c"), re.DOTALL)[0]
    fields = [(each.strip(), np.dtype(types[kind])) for kind, names in re.findall(r"(\w+) ([^;]+);", body) for each in names.split(",")]
    short = {"func_id": "func"}
    assert fields == [(short.get(field, field), mirror[field]) for field in mirror.names or ()]


def test_columns_of_the_decoder() -> None:
    assert [name for name, *_ in rebuild.Decoded._fields_] == [name for name in EVENTS.arrow.names if name not in ("pid", "tid")]


def test_tensors_of_native_calls() -> None:
    events, c = numbers(PROBES / "events.h"), numbers(PROBES / "native.c")
    assert (events["TENSORS"], events["TENSOR_ABSENT"]) == (signature.MOST, tensors._ABSENT)
    assert {how.name: c[how.name] for how in signature.How} == {how.name: how.value for how in signature.How}
    assert (c["AFTER_RETURN"], c["STACK_SHIFT"], c["BY_FRAME_POINTER"]) == (layers._AFTER_RETURN, layers._STACK_SHIFT, code.BY_FRAME_POINTER)


def test_functions_of_malloc() -> None:
    c = numbers(PROBES / "blocks.c")
    names = ("MALLOC", "CALLOC", "REALLOC", "MEMALIGN", "POSIX_MEMALIGN")
    assert [c[name] for name in names] == [getattr(blocks, name) for name in names]


def test_frames_as_the_probes_read_them() -> None:
    body = re.findall(r"struct frame_layout \{(.*?)\};", text(PROBES / "frames.h"), re.DOTALL)[0]
    assert tuple(re.findall(r"__s32 (\w+);", body)) == (*probes._LAYOUT, "pad")
    assert re.findall(r"#define ABSENT \((.*?)\)", text(PROBES / "frames.h")) == ["-0x7fffffff - 1"]
    assert probes._ABSENT == -0x7FFFFFFF - 1
    assert numbers(PROBES / "frames.h")["OWNED_BY_GENERATOR"] == frames._OWNED_BY_GENERATOR
