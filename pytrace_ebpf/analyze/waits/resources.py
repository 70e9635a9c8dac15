"""What threads waited for behind descriptors, as a reader would call it: a server by its service and address, a file by its path."""

from typing import Any

import numpy as np
import pandas as pd

SERVICES = {
    22: "ssh", 25: "smtp", 53: "dns", 80: "http", 389: "ldap", 443: "https", 1433: "sqlserver", 1521: "oracle", 2181: "zookeeper", 2379: "etcd",
    3306: "mysql", 4222: "nats", 4317: "otlp", 5432: "postgres", 5672: "amqp", 6379: "redis", 6432: "pgbouncer", 8123: "clickhouse", 9000: "clickhouse",
    9042: "cassandra", 9092: "kafka", 9200: "elasticsearch", 11211: "memcached", 27017: "mongodb",
}  # fmt: skip
"""What usually listens on a port."""
_EPHEMERAL = 32768  # ports from here on are given to who connects: net.ipv4.ip_local_port_range
_BY_NAME = ("file", "directory", "device")
_ALONE = ("pipe", "eventfd", "timerfd", "signalfd", "inotify", "pidfd", "io_uring")


def labels(resources: pd.DataFrame) -> "pd.Series[Any]":
    """By resource_id what to call each of `resources` (schema.RESOURCES); null where there is nothing to say, as of an epoll instance that found nothing.

    postgres 127.0.0.1:5432, tcp 10.0.0.7:7001; clients of 0.0.0.0:8000, for all connections that were accepted there; listening 0.0.0.0:8000;
    /var/lib/app/log; unix /run/app.sock, unix socket of 4711 (its peer's process); pipe, timerfd.
    """
    kind, name, local = (resources[column].astype("object") for column in ("kind", "name", "local_name"))
    out = pd.Series(None, index=resources.index, dtype="object")
    internet = kind.isin(("tcp", "udp"))
    own, other = _ports(local), _ports(name)
    listens = resources["listens"].astype(bool)
    connected = internet & ~listens & (name != local)
    accepted = connected & (kind == "tcp") & (own.isin(own[listens & internet].unique()) | ((own < _EPHEMERAL) & (other >= _EPHEMERAL)))
    out[internet] = other[internet].map(SERVICES).fillna(kind[internet]) + " " + name[internet]
    out[accepted] = "clients of " + local[accepted]
    out[listens] = "listening " + local[listens]
    out[internet & ~listens & (name == local)] = kind + " " + local
    unix = kind == "unix"
    of = resources["peer_pid"].astype("object").map(lambda pid: f"unix socket of {pid}" if pid > 0 else "unix socket")
    out[unix] = ("unix " + name).where(name != "", of)[unix]
    named = kind.isin(_BY_NAME) & (name != "")
    out[named] = name[named]
    alone = kind.isin(_ALONE)
    out[alone] = kind[alone]
    out.index = pd.Index(resources["resource_id"])
    return out


def _ports(ends: "pd.Series[Any]") -> "pd.Series[int]":
    """The port of each address:port, -1 where there is none."""
    return pd.to_numeric(ends.str.rpartition(":")[2], errors="coerce").fillna(-1).astype(np.int64)


def named(waits: pd.DataFrame, called: "pd.Series[Any]") -> "pd.Series[Any]":
    """What each of `waits` was for, by labels(); null where that is not known."""
    return waits["resource_id"].map(called).astype("object")
