"""What samples from outside, against processes whose memory is forged: every look ends, and finds no more than there can be."""

import ctypes
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytrace_ebpf.record.cpython.layout import Layout, layout_for
from pytrace_ebpf.record.process.pinned import Descriptor
from pytrace_ebpf.record.sampling.remote_sampler import RemoteSampler
from tests.conftest import PATIENCE_S, REPOSITORY

pytestmark = pytest.mark.skipif(
    not (REPOSITORY / "probes/remote_sampler/remote_sampler.so").exists(), reason="remote_sampler.so is not built: run scripts/build-libraries.sh"
)

VERSIONS = [(3, minor) for minor in range(8, 16)]
BYTES = 1 << 16
MAIN = 8  # where in it the pointer to the main interpreter is, behind the one to the newest
PERIOD_NS = 1_000_000
MOST_FRAMES, MOST_LOOK_S = 1024, 5.0


@pytest.fixture
def forged() -> Iterator[Callable[[Callable[[int], bytes]], tuple[Any, int]]]:
    """`forged(content)`: a process that runs and has content(address) at an address, as a target; and that address."""
    pids = []

    def start(content: Callable[[int], bytes]) -> tuple[Any, int]:
        buffer = ctypes.create_string_buffer(BYTES)
        address = ctypes.addressof(buffer)
        raw = content(address)
        ctypes.memmove(buffer, raw, len(raw))
        pids.append(os.fork())
        if not pids[-1]:
            while True:
                pass
        folder = Path(f"/proc/{pids[-1]}")
        process = SimpleNamespace(
            open=lambda name: os.open(folder / name, os.O_RDONLY),
            memory_to_read=Descriptor(os.open(folder / "mem", os.O_RDONLY)),
            foreign_namespaces=set(),
        )
        binary = SimpleNamespace(symbol=lambda name: None)
        return SimpleNamespace(process=process, pid=pids[-1], binary=binary, bias=0, gil_range=lambda: (address, address + 8)), address

    yield start
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def layout_of(version: tuple[int, int]) -> Layout:
    layout = layout_for(version)
    assert layout is not None
    return layout


def look(target: Any, version: tuple[int, int], address: int, times: int = 30) -> tuple[np.ndarray, list[Any], dict[str, int]]:
    layout = layout_of(version)
    outside = RemoteSampler(target, layout, address + MAIN - layout.runtime_main_interpreter, PERIOD_NS)
    samples, stacks, patient_until = list[np.ndarray](), list[Any](), time.monotonic() + PATIENCE_S
    while times > 0 or (not any(map(len, samples)) and time.monotonic() < patient_until):  # the process has to get a core first
        began, times = time.thread_time(), times - 1
        outside.look()
        assert time.thread_time() - began < MOST_LOOK_S
        time.sleep(0.002)
        found, new = outside.collect()
        samples.append(found)
        stacks += new
    losses = outside.losses
    outside.close()
    return np.concatenate(samples), stacks, losses


def assert_possible(target: Any, samples: np.ndarray, stacks: list[Any]) -> None:
    assert set((samples["pid_tgid"] >> np.uint64(32)).tolist()) <= {target.pid}
    assert set(samples["state"].tolist()) <= {1, 2, 3, 4}
    assert len(samples)
    numbers = {number for number, _, _ in stacks}
    assert {number for number in samples["stack"].tolist() if number > 1} <= numbers
    assert all(0 < len(frames) <= MOST_FRAMES for _, _, frames in stacks)


@pytest.mark.parametrize("version", VERSIONS)
def test_random_memory_that_points_into_itself(forged: Callable[..., tuple[Any, int]], version: tuple[int, int]) -> None:
    for seed in range(5):
        rng = random.Random(seed)

        def content(address: int, rng: random.Random = rng) -> bytes:
            words = [rng.choice((0, 3, rng.getrandbits(64), *[address + 8 * rng.randrange(BYTES // 8)] * 5)) for _ in range(BYTES // 8)]
            words[0] = address + 8 * rng.randrange(BYTES // 16)
            return np.array(words, np.uint64).tobytes()

        target, address = forged(content)
        samples, stacks, _ = look(target, version, address)
        assert_possible(target, samples, stacks)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_ring_of_threads_and_one_of_frames(forged: Callable[..., tuple[Any, int]], version: tuple[int, int]) -> None:
    """Each interpreter is the one before itself, each thread state the next one's, the thread's own, and its frame its own caller."""
    layout = layout_of(version)
    state, frame, code, word = 0x2000, 0x4000, 0x6000, 0x8000

    def content(address: int) -> bytes:
        memory = bytearray(BYTES)

        def put(at: int, value: int, size: int = 8) -> None:
            memory[at : at + size] = value.to_bytes(size, "little")

        for pointer in (0, MAIN, 0x100 + (layout.interpreter_next or 0)):
            put(pointer, address + 0x100)
        assert 0x100 + layout.interpreter_threads + 8 < BYTES
        put(0x100 + layout.interpreter_threads, address + state)
        put(state + layout.thread_next, address + state)
        put(state + layout.thread_pthread, address + word)
        put(state + layout.thread_frame, address + (frame if layout.cframe_frame is None else word + 0x100))
        put(word + 0x100 + (layout.cframe_frame or 0), address + frame)
        put(frame + layout.frame_previous, address + frame)
        put(frame + layout.frame_code, address + code)
        if layout.frame_running is not None:
            put(frame + layout.frame_running[0], layout.frame_running[1][0], 1)
        if layout.code_start is not None:
            put(frame + layout.frame_position, address + code + layout.code_start)
        put(code + 16, 1 << 20)
        put(code + layout.code_name, address + word + 0x200)
        return bytes(memory)

    target, address = forged(content)
    with Path(f"/proc/{target.pid}/mem").open("r+b", buffering=0) as memory:  # its number is known only now
        where = address + state + layout.thread_native_id if layout.thread_native_id is not None else address + word + 0x2D0
        memory.seek(where)
        memory.write(target.pid.to_bytes(4, "little"))
    samples, stacks, losses = look(target, version, address, times=3)  # each goes round until it gives up, and finds the same
    assert_possible(target, samples, stacks)
    assert (losses["stack_depth"] > 0) == bool(stacks)
    assert all(deep and len(frames) == MOST_FRAMES for _, deep, frames in stacks)
    assert stacks or losses["sample_torn"] > 0


def test_a_process_that_has_ended_is_said_to_have(forged: Callable[..., tuple[Any, int]]) -> None:
    target, address = forged(lambda address: bytes(BYTES))
    layout = layout_of((3, 11))
    outside = RemoteSampler(target, layout, address + MAIN - layout.runtime_main_interpreter, PERIOD_NS)
    samples = np.zeros(0)
    while not len(samples):
        outside.look()
        assert not outside.ended
        samples, stacks = outside.collect()
        assert not stacks and set(samples["stack"].tolist()) <= {0}
    os.kill(target.pid, signal.SIGKILL)
    os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
    outside.look()
    assert outside.ended
    outside.close()


def test_threads_that_begin_and_end_while_it_looks() -> None:
    """Of this very process, which reads itself as it would another."""
    import sys
    import threading

    from pytrace_ebpf.record.process.target import inspect

    target = inspect(os.getpid())
    if target.layout is None or target.runtime is None:
        pytest.skip(f"{sys.version} is not known")
    outside = RemoteSampler(target, target.layout, target.runtime, PERIOD_NS)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        threads = [threading.Thread(target=time.sleep, args=(random.random() / 100,)) for _ in range(20)]
        for thread in threads:
            thread.start()
        outside.look()
        outside.refresh()
        outside.look()
        for thread in threads:
            thread.join()
    samples, stacks = outside.collect()
    assert_possible(target, samples, stacks)
    outside.close()
