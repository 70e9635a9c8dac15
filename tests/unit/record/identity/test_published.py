"""OpenTelemetry's process context, as a program publishes it: a real mapping of a real process, and payloads that are none."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from pytrace_ebpf.record.identity.identities import Identities
from pytrace_ebpf.record.identity.published import attributes, published
from pytrace_ebpf.record.process.pinned import Pinned
from pytrace_ebpf.record.process.readings import Readings
from tests.bpf.conftest import wait_until

NOBODY = 65534


def field(number: int, content: bytes) -> bytes:
    size, head = len(content), bytes([number << 3 | 2])
    while size > 0x7F:
        head, size = head + bytes([size & 0x7F | 0x80]), size >> 7
    return head + bytes([size]) + content


def context(pairs: dict[str, str]) -> bytes:
    """A ProcessContext."""
    return field(1, b"".join(field(1, field(1, key.encode()) + field(2, field(1, value.encode()))) for key, value in pairs.items()))


# Publishes each line of its input, a payload in hexadecimal digits and how: memfd, anonymous; or lies about version, size or address, or has no payload.
PUBLISHES = """
import ctypes, mmap, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
kept = []
print("ready", flush=True)
for line in sys.stdin:
    how, payload = line.split()[0], bytes.fromhex("".join(line.split()[1:]))
    kept.append(ctypes.create_string_buffer(payload, len(payload) + 1))
    if kept[:-1]:
        kept.pop(0)
        libc.munmap(ctypes.c_void_p(at), 4096)
    file = -1 if how == "anonymous" else os.memfd_create("OTEL_CTX")
    if file >= 0:
        os.ftruncate(file, 4096)
    at = libc.mmap(None, 4096, 3, 2 if file >= 0 else 0x22, file, 0)
    if file >= 0:
        os.close(file)
    version, size, since = 1 if how == "version" else 2, 1 << 31 if how == "size" else len(payload), 0 if how == "writing" else 1
    address = 4096 if how == "address" else ctypes.addressof(kept[-1])
    ctypes.memmove(at, struct.pack("<8sIIQQ", b"OTEL_CTX", version, size, since, address), 32)
    named = libc.prctl(0x53564D41, 0, ctypes.c_ulong(at), ctypes.c_ulong(4096), b"OTEL_CTX") if how == "anonymous" else 0
    print("published" if named == 0 else "unnamed", flush=True)
"""


@contextmanager
def publishing() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable if os.geteuid() else "/usr/bin/python3", "-c", PUBLISHES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        **({"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}),
    ) as process:  # fmt: skip
        assert process.stdout and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def publish(process: "subprocess.Popen[str]", how: str, payload: bytes) -> str:
    assert process.stdin and process.stdout
    process.stdin.write(f"{how} {payload.hex()}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


SHOP = {"service.name": "shop", "service.instance.id": "7\x1b", "password": "hunter2", "service.version": "1" * 9999}


@pytest.mark.skipif(os.geteuid() != 0, reason="looks at a process of a user's as root does")
def test_what_a_users_process_publishes_and_what_is_none() -> None:
    with publishing() as process:
        pinned = Pinned(process.pid)
        assert published(pinned) == {}
        expected = {"service_name": "shop", "service_instance_id": "7?", "service_version": "1" * 256}
        assert publish(process, "memfd", context(SHOP)) == "published"
        assert published(pinned) == expected
        for how in ("version", "size", "address", "writing"):
            publish(process, how, context(SHOP))
            assert published(pinned) == {}, how
        for nonsense in (b"\xff" * 50, b"", b"\x0a\xff\xff\xff\xff\x0f", context({"service.name": "x" * 65536}), b"\0" * 3000):
            publish(process, "memfd", nonsense)
            assert published(pinned) == {}
        if publish(process, "anonymous", context({"service.name": "pay"})) == "published":  # where the kernel names them
            assert published(pinned) == {"service_name": "pay"}


@pytest.mark.skipif(os.geteuid() != 0, reason="looks at a process of a user's as root does")
def test_what_is_published_late_comes_late() -> None:
    identities = Identities(Readings(None, "names"))
    with publishing() as process:
        assert identities.begun(Pinned(process.pid))["service_name"] is None
        assert list(identities.learned()) == []
        publish(process, "memfd", context(SHOP))
        found: list[tuple[int, str | None]] = []
        wait_until(lambda: bool(found.extend((pid, columns["service_name"]) for pid, columns in identities.learned()) or found))
        assert found == [(process.pid, "shop")]
        identities.ended(process.pid)
        assert list(identities.learned()) == []
        identities.forget(process.pid)


def test_no_payload_is_a_crash() -> None:
    generator, whole = random.Random(1), context(SHOP)
    assert attributes(whole)["service.name"] == "shop"
    for _ in range(500):
        broken = bytearray(whole[: generator.randrange(80)])
        for _ in range(3):
            broken[generator.randrange(len(broken) or 1) : 1] = generator.randbytes(1)
        with suppress(ValueError):
            attributes(bytes(broken))
