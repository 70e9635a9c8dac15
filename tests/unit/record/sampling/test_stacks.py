"""Stacks that are reported in pieces, and the tree of those that the samples of a segment refer to."""

from collections.abc import Iterable, Mapping

import numpy as np

from pytrace_ebpf.record.cpython.frames import CodeInfo
from pytrace_ebpf.record.cpython.functions import Functions
from pytrace_ebpf.record.cpython.lines import CodeLines
from pytrace_ebpf.record.sampling.native import FRAME_NATIVE, Native
from pytrace_ebpf.record.sampling.stacks import FRAME_ENTERED, Below, Key, Place, Program, Tree, join

FRAME = np.dtype([("code", "<u8"), ("identity", "<u4"), ("position", "<i4")])
EVENT = np.dtype(
    [
        ("stack", "<u8"),
        ("program", "<u4"),
        ("first", "<u2"),
        ("count", "<u2"),
        ("total", "<u2"),
        ("deep", "<u2"),
        ("native", "<u4"),
        ("frames", FRAME, (2,)),
    ]
)
ASKED: list[list[Key]] = []


def read(keys: list[Key]) -> Mapping[Key, CodeLines]:
    """Code at 100 * n is the function fn of the lines 10 n and, from position 8 on, 10 n + 1; at 900 is none; at 800 is no function."""
    ASKED.append(keys)
    return {
        (code, identity): CodeLines(
            CodeInfo("__init__", "__init__", None, 1, 0) if code == 800 else CodeInfo("/a.py", f"f{code // 100}", f"f{code // 100}", code // 10, 0),
            [(0, code // 10), (8, code // 10 + 1)],
        )
        for code, identity in keys
        if code != 900
    }


def reported(*rows: tuple[int, int, int, int, list[tuple[int, int]]]) -> np.ndarray:
    """stack_event records: stack, first, total, deep, (code, position) of the frames."""
    events = np.zeros(len(rows), EVENT)
    for event, (stack, first, total, deep, frames) in zip(events, rows, strict=True):
        event["stack"], event["first"], event["count"], event["total"], event["deep"] = stack, first, len(frames), total, deep
        for at, (code, position) in enumerate(frames):
            event["frames"][at] = code, 7, position
    return events


def program(functions: Functions, unit: int = 1) -> Program:
    ASKED.clear()
    return Program(functions, read, lambda file, line, name: None, unit)


def test_pieces_of_a_stack_become_one_from_the_outside_in() -> None:
    of = program(Functions())
    of.learn(reported((5, 2, 3, 0, [(300, 0)]), (5, 0, 3, 0, [(100, 8), (200, 0)])))
    assert of.stacks[5] == ((2, 30), (1, 20), (0, 11)) or [line for _, line in of.stacks[5]] == [30, 20, 11]


def test_a_code_object_is_read_once() -> None:
    of = program(Functions())
    of.learn(reported((5, 0, 1, 0, [(100, 0)])))
    of.learn(reported((6, 0, 2, 0, [(100, 8), (200, 0)])))
    of.learn(reported((6, 0, 2, 0, [(100, 8), (200, 0)])))  # reported by two cores
    assert ASKED == [[(100, 7)], [(200, 7)]]


def test_what_is_gone_is_unknown_and_the_interpreters_own_is_left_out() -> None:
    of = program(Functions())
    assert of.learn(reported((5, 0, 2, 0, [(900, 0), (100, -2)]), (6, 0, 2, 0, [(800, 0), (100, 0)]))) == (3, 1)
    assert list(of.stacks[5]) == [(0, 10), (-1, -1)]
    assert of.stacks[6] == ((0, 10),)


def test_of_a_stack_that_is_too_deep_the_outermost_frame_is_unknown() -> None:
    of = program(Functions())
    of.learn(reported((5, 0, 2, 1, [(100, 0), (200, 0)])))
    assert next(func for func, _ in of.stacks[5]) == -1 and len(of.stacks[5]) == 3


def test_a_stack_of_which_a_piece_was_lost_is_none() -> None:
    of = program(Functions())
    of.learn(reported((5, 0, 3, 0, [(100, 0), (200, 0)])))
    assert 5 not in of.stacks


def test_positions_of_3_10_are_in_instructions() -> None:
    of = program(Functions(), unit=2)
    of.learn(reported((5, 0, 2, 0, [(100, 3), (200, 4)])))
    assert [line for _, line in of.stacks[5]] == [21, 10]


def test_a_tree_has_each_stack_once_and_callers_first() -> None:
    tree = Tree(100)
    numbers = [tree.number(stack) for stack in (((0, 1), (1, 2)), ((0, 1), (1, 3)), ((0, 1),), ((0, 1), (1, 2)))]
    assert numbers == [101, 102, 100, 101]
    rows = tree.rows()
    assert rows["stack_id"].tolist() == [100, 101, 102]
    assert rows["parent_id"].tolist() == [-1, 100, 100]
    assert rows["func_id"].tolist() == [0, 1, 1] and rows["line"].tolist() == [1, 2, 3]
    assert tree.next == 103
    assert len(Tree(7).rows()["stack_id"]) == 0


EVAL, CALL, NAMELESS = Native(90, evaluates=True), Native(91, calls=True), Native(92, nameless=True)
SORT, DEFLATE, MAIN = Native(93), Native(94), Native(95, begins=True)
OUTER: list[Place] = [(1, 10), (0, 5)]  # innermost first
INNER: list[Place] = [(2, 20)]


def test_native_frames_stand_below_the_python_frames_that_they_were_called_from() -> None:
    natives = [DEFLATE, CALL, EVAL, CALL, SORT, NAMELESS, CALL, EVAL, CALL, MAIN]
    assert join([INNER, OUTER], Below(natives), whole=True) == [(94, -1), *INNER, (93, -1), *OUTER]


def test_where_the_thread_was_in_it_stays_whatever_it_is() -> None:
    assert join([INNER], Below([CALL, SORT, EVAL, MAIN]), whole=True) == [(91, -1), (93, -1), *INNER]
    assert join([INNER], Below([NAMELESS, SORT, EVAL, MAIN]), whole=True) == [(92, -1), (93, -1), *INNER]
    assert join([INNER], Below([EVAL, MAIN]), whole=True) == INNER


def test_outside_of_all_python_frames_stands_who_called_them_but_not_how_the_interpreter_began() -> None:
    assert join([INNER, OUTER], Below([EVAL, MAIN, EVAL, CALL, SORT, NAMELESS, MAIN]), whole=True) == [*INNER, (95, -1), *OUTER, (93, -1)]
    assert join([INNER], Below([EVAL, SORT, MAIN]), whole=False) == INNER


def test_a_thread_without_python_has_all_its_native_frames() -> None:
    assert join([], Below([DEFLATE, NAMELESS, MAIN]), whole=True) == [(94, -1), (92, -1), (95, -1)]
    assert join([], Below([DEFLATE]), whole=False) == [(94, -1)]
    assert join([], Below([DEFLATE, EVAL, MAIN]), whole=True) is None  # it has Python's, which were not read
    assert join([], Below([DEFLATE, EVAL]), whole=False) is None


def test_frames_that_do_not_fit_each_other_are_not_joined() -> None:
    assert join([INNER, OUTER], Below([SORT, EVAL, MAIN]), whole=True) is None
    assert join([INNER], Below([SORT, EVAL, SORT, EVAL, MAIN]), whole=True) is None


def test_of_a_native_stack_that_is_not_whole_only_what_is_below_all_python_frames_is_certain() -> None:
    assert join([INNER, OUTER], Below([DEFLATE, EVAL, SORT, EVAL]), whole=False) == [(94, -1), *INNER, *OUTER]
    assert join([INNER, OUTER], Below([DEFLATE]), whole=False) == [(94, -1), *INNER, *OUTER]
    assert join([INNER], Below([None, EVAL]), whole=False) == [(-1, -1), *INNER]  # its file is not known any more


class Known:
    """Native functions by the low bits of what is reported."""

    def functions(self, frames: Iterable[int], user: int = 0) -> Mapping[int, Native]:
        return {frame: {1: EVAL, 2: SORT, 3: DEFLATE}[frame & 0xFF] for frame in frames}


def test_a_reported_stack_has_both() -> None:
    def learned(entered: int, nested: bool, natives: list[int], native: int) -> tuple[tuple[int, ...], bool]:
        of = Program(Functions(), read, lambda file, line, name: None, 1, Known(), nested)
        frames = [(100, 0), (200 | entered, 0), (300 | FRAME_ENTERED, 0), *((FRAME_NATIVE | code, 0) for code in natives)]
        events = reported(*((5, at, len(frames), 0, frames[at : at + 2]) for at in range(0, len(frames), 2)))
        events["native"] = native
        of.learn(events)
        return tuple(line if line > 0 else func_id for func_id, line in of.stacks[5]), 5 in of.apart

    assert learned(FRAME_ENTERED, False, [3, 1, 2, 1], 1) == ((30, 93, 20, 10, 94), False)
    assert learned(0, False, [3, 1, 2], 1) == ((93, 30, 20, 10, 94), False)
    assert learned(0, True, [3, 1, 2, 1, 1, 2], 1) == ((93, 30, 20, 93, 10, 94), False)  # the interpreter's function runs one frame each
    assert learned(0, False, [3, 1, 2, 1], 1) == ((30, 20, 10), True)
    assert learned(0, False, [3, 1, 2, 1], 3) == ((30, 20, 10, 94), False)
