"""What threads wait for behind descriptors: the table of it, a part of trace/schema.py, and what listens where."""

from pytrace_ebpf.trace.table import Column, Table

RESOURCE_KINDS = (
    "file", "directory", "device", "tcp", "udp", "unix", "socket", "pipe",
    "epoll", "eventfd", "timerfd", "signalfd", "inotify", "pidfd", "io_uring", "child", "other",
)  # fmt: skip

SERVICES = {
    22: "ssh", 25: "smtp", 53: "dns", 80: "http", 389: "ldap", 443: "https", 1433: "mssql", 1521: "oracle", 2181: "zookeeper", 2379: "etcd",
    3306: "mysql", 4222: "nats", 4317: "otlp", 5432: "postgres", 5672: "amqp", 6379: "redis", 6432: "pgbouncer", 8123: "clickhouse",
    9042: "cassandra", 9092: "kafka", 9200: "elasticsearch", 11211: "memcached", 27017: "mongodb",
}  # fmt: skip
"""What usually listens on a port."""

RESOURCES = Table(
    "resources",
    "One row per file, socket, pipe or the like that a traced thread waited for behind a descriptor, and per child process that ended a wait, named when it was first waited for: "
    "what a descriptor or an inode is used for later is another resource, and so is a file that was renamed.",
    ("resource_id",),
    (
        Column("resource_id", "int64", "", "joins sched and waits; a hash of what tells it from others"),
        Column("kind", "dictionary of string", "", ", ".join(RESOURCE_KINDS)),
        Column(
            "name",
            "string",
            "",
            "file, directory, device: its path, from the root of its mount namespace, with ... in front where it has more than 32 parts or 1,024 bytes; "
            "tcp, udp: address:port of the other end, of a socket that listens or is not connected of its own; unix: the address of the other end, "
            "else its own, with @ for the zero byte of an abstract one; child: its command, as ps calls it; empty = it has none",
        ),
        Column("local_name", "string", "", "tcp, udp: address:port of its own end; else empty"),
        Column("listens", "bool", "", "tcp: connections are accepted from it"),
        Column("pid", "int32", "", "process that first waited for it"),
        Column("descriptor", "int32", "", "and its descriptor there"),
        Column(
            "peer_pid",
            "int32",
            "",
            "unix: process that made the other end, as the kernel has it for SO_PEERCRED, in the host's ids; child: its own; tcp, pipe: a process of this host "
            "that has the other end, or another one of the pipe, where that was found soon enough; 0 not known",
        ),
        Column("device", "int64", "", "number of its file system's device"),
        Column("inode", "int64", "", "and its inode there"),
        Column("peer_command", "string", "", "command of that process, as ps calls it; empty where it is not known, and of a child, whose name it is", absent=""),
        Column("peer_looks", "int32", "", "tcp: how often that process was looked at while it worked for this connection; of PostgreSQL on this host alone", absent=0),
        Column("peer_lock_waits", "int32", "", "and said of itself that it waits for a lock, a row's or a table's, that another session has", absent=0),
    ),
    timed=False,
)  # fmt: skip
