"""Which wait is which finding: a table of rules, of which the first that fits a row counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from pytrace_ebpf.analyze.waits.resources import LOCK_OF
from pytrace_ebpf.trace.schema import OF_THE_INTERPRETER

Rows: TypeAlias = pd.DataFrame
Mask: TypeAlias = "pd.Series[bool]"

TO_DISK = ("fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync")
LOOK_UPS = ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr", "getfqdn", "getnameinfo")
PROCESSES = (
    "subprocess",
    "multiprocessing.popen_fork",
    "multiprocessing.popen_spawn_posix",
    "multiprocessing.popen_forkserver",
    "asyncio.subprocess",
)
_PEERS = ("net", "io-read", "io-write", "poll")


@dataclass(frozen=True)
class Rule:
    """One kind of finding of waits.

    fits: of rows of Waited.rows with the names of what was called (called, called_module) which are of it.
    waits: how its sentence goes on after "waits 12 % of the time, 1.2s,", with the fields of the finding in braces.
    by: what tells two findings of it in one function apart.
    evidence: the words of `report` that show it.
    """

    name: str
    fits: Callable[[Rows], Mask]
    waits: str
    by: tuple[str, ...] = ()
    evidence: str = "--by wait"


def _resource(*begins: str) -> Callable[[Rows], Mask]:
    return lambda rows: rows["resource"].astype("string").str.startswith(begins).fillna(False).astype(bool)


def _kind(*kinds: str) -> Callable[[Rows], Mask]:
    return lambda rows: rows["kind"].isin(kinds)


def _is_peer(rows: Rows) -> Mask:
    """The other end of a connection: by address, and none of this host's files or pipes."""
    named = rows["resource"].notna() & ~_resource(
        "/", "pipe", "eventfd", "timerfd", "signalfd", "inotify", "pidfd", "io_uring", "listening", "clients"
    )(rows)
    return named & rows["kind"].isin(_PEERS)


RULES = (
    Rule("gil", _kind("gil"), "for the GIL", evidence="--by gil"),
    Rule("object-lock", _kind(*OF_THE_INTERPRETER), "for an object's own lock, or for all threads to stop"),
    Rule("memory", _kind("page-fault"), "for memory to be read in (page faults)"),
    Rule("subprocess", lambda rows: rows["kind"].eq("wait-child") | rows["called_module"].isin(PROCESSES), "for a child process{of}"),
    Rule("sleep", _kind("sleep"), "asleep"),
    Rule("fsync", lambda rows: rows["syscall"].isin(TO_DISK), "for the disk to have {what} ({syscall})", ("syscall",)),
    Rule("dns", lambda rows: rows["called"].isin(LOOK_UPS) | _resource("dns ")(rows), "for a name to be looked up{of}", ("resource",)),
    Rule("queue", lambda rows: rows["primitive_func_id"] >= 0, "in `{primitive}`{until}", ("primitive_func_id",)),
    Rule("lock", _kind("lock"), "for a lock{until}"),
    Rule("tls", lambda rows: _is_peer(rows) & rows["shakes_hands"], "for {what} in TLS handshakes", ("resource",)),
    Rule("database-lock", _resource(LOCK_OF), "for a {what} that another of its sessions has ({syscall})", ("resource", "syscall")),
    Rule("peer", _is_peer, "for {what} ({syscall})", ("resource", "syscall")),
    Rule("file", _resource("/"), "for {what} ({syscall})", ("syscall",)),
    Rule("pipe", _resource("pipe"), "for who is at the other end of a pipe ({syscall})", ("syscall",)),
    Rule("wait", lambda rows: pd.Series(True, rows.index), "{said}", ("kind", "syscall", "resource")),
)  # fmt: skip


def classified(rows: Rows) -> "pd.Series[Any]":
    """By row the number of its rule in RULES."""
    number = np.full(len(rows), len(RULES) - 1)
    for at in range(len(RULES) - 1, -1, -1):
        number[RULES[at].fits(rows).to_numpy(bool)] = at
    return pd.Series(number, rows.index)
