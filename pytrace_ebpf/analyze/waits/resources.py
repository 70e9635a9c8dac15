"""What threads waited for behind descriptors, as a reader would call it: a server by its service and address, a file by its path."""

from typing import Any

import numpy as np
import pandas as pd

from pytrace_ebpf.derive.added import added
from pytrace_ebpf.trace.resources import SERVICES

LOCK_OF = "lock of "  # a database
_MOSTLY = 0.5
_EPHEMERAL = 32768  # ports from here on are given to who connects: net.ipv4.ip_local_port_range
_COLUMNS = ("func_id", "start_ns", "blocked_until_ns", "end_ns", "syscall", "resource_id")
_SENDS = ("sendto", "sendmsg", "sendmmsg", "write", "writev", "sendfile")
_BY_NAME = ("file", "directory", "device")
_ALONE = ("pipe", "eventfd", "timerfd", "signalfd", "inotify", "pidfd", "io_uring")


def labels(resources: pd.DataFrame) -> "pd.Series[Any]":
    """By resource_id what to call each of `resources` (schema.RESOURCES); null where there is nothing to say, as of an epoll instance that found nothing.

    postgres 127.0.0.1:5432, tcp 10.0.0.7:7001; clients of 0.0.0.0:8000, for all connections that were accepted there; listening 0.0.0.0:8000;
    lock of postgres 127.0.0.1:5432, where its process mostly said that it waits for one;
    /var/lib/app/log; unix /run/app.sock, unix socket of worker (4711) (its peer's process); pipe, pipe of ffmpeg, timerfd; child git.
    """
    kind, name, local = (resources[column].astype("object") for column in ("kind", "name", "local_name"))
    out = pd.Series(None, index=resources.index, dtype="object")
    internet, listens, accepted = kind.isin(("tcp", "udp")), resources["listens"].astype(bool), _accepted(resources)
    command = resources["peer_command"].astype("object")
    found = internet & (command != "")
    servers = command[found].groupby(name[found]).last()  # other connections to them ended before anybody looked
    called = _ports(name).map(SERVICES).astype("object").fillna(name.map(servers).astype("object")).fillna(kind)
    out[internet] = (called + " " + name)[internet]
    locked = internet & (resources["peer_lock_waits"] > _MOSTLY * resources["peer_looks"])
    out[locked] = LOCK_OF + out[locked]
    out[accepted] = "clients of " + local[accepted]
    out[listens] = "listening " + local[listens]
    out[internet & ~listens & (name == local)] = kind + " " + local
    unix = kind == "unix"
    pid = resources["peer_pid"].astype("object")
    of = pid.map(lambda number: f"unix socket of {number}" if number > 0 else "unix socket")
    of = of.where(command == "", "unix socket of " + command + pid.map(" ({})".format))
    out[unix] = ("unix " + name).where(name != "", of)[unix]
    named = kind.isin(_BY_NAME) & (name != "")
    out[named] = name[named]
    child = kind == "child"
    out[child] = "child " + name[child]
    alone = kind.isin(_ALONE)
    out[alone] = kind[alone].where(command[alone] == "", kind[alone] + " of " + command[alone])
    out.index = pd.Index(resources["resource_id"])
    return out


def of_clients(resources: pd.DataFrame) -> pd.DataFrame:
    """Those of `resources` that a server waits at for work: sockets that listen, and the connections that were accepted from them."""
    return resources[resources["listens"].astype(bool) | _accepted(resources)]


def for_work(trace: Any) -> "pd.Series[int]":
    """How long the calls of each function, by func_id, waited for clients to connect or to send something, in a pytrace_ebpf Trace, ns."""
    clients = of_clients(trace.resources())["resource_id"]
    if not len(clients):  # most programs are no servers
        return pd.Series(dtype=np.int64)
    sums = added((_for_work(part, clients) for part in trace.waits_by_part(_COLUMNS)), ["func_id"], {"ns": "sum"})
    return sums.set_index("func_id")["ns"]


def sends(syscall: "pd.Series[Any]") -> "pd.Series[bool]":
    """Which system calls, by name, send something."""
    return syscall.astype("object").isin(_SENDS)


def _for_work(waits: pd.DataFrame, clients: "pd.Series[int]") -> pd.DataFrame:
    waits = waits[waits["resource_id"].isin(clients) & ~sends(waits["syscall"])]
    return waits.assign(ns=(waits["blocked_until_ns"].fillna(waits["end_ns"]) - waits["start_ns"]).astype(np.int64))


def _accepted(resources: pd.DataFrame) -> "pd.Series[bool]":
    """Connections of a server: to the port of a socket that listens, else from one that is given to clients to one that is not."""
    own, other, listens = _ports(resources["local_name"]), _ports(resources["name"]), resources["listens"].astype(bool)
    connected = (resources["kind"].astype("object") == "tcp") & ~listens & (resources["name"] != resources["local_name"])
    return connected & (own.isin(own[listens & (own >= 0)].unique()) | ((own < _EPHEMERAL) & (other >= _EPHEMERAL)))


def _ports(ends: "pd.Series[Any]") -> "pd.Series[int]":
    """The port of each address:port, -1 where there is none."""
    return pd.to_numeric(ends.str.rsplit(":", n=1).str[-1], errors="coerce").fillna(-1).astype(np.int64)


def named(waits: pd.DataFrame, called: "pd.Series[Any]") -> "pd.Series[Any]":
    """What each of `waits` was for, by labels(); null where that is not known."""
    return waits["resource_id"].map(called).astype("object")
