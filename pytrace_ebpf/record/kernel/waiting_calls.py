"""Which system calls wait for what is behind a descriptor or for a child process, and where they are told which."""

ON_DESCRIPTOR, ON_EPOLL, ON_POLL, ON_SELECT, ON_CHILD = 1, 2, 3, 4, 5  # probes/descriptors.h
CALLS = {
    ON_DESCRIPTOR: frozenset((
        "read", "pread64", "readv", "preadv", "preadv2", "write", "pwrite64", "writev", "pwritev", "pwritev2", "getdents64", "fsync", "fdatasync",
        "sync_file_range", "syncfs", "fallocate", "ftruncate", "flock", "readahead", "recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg",
        "accept", "accept4", "connect", "sendfile", "splice", "tee", "vmsplice", "copy_file_range", "io_uring_enter", "ioctl", "fcntl",
    )),
    ON_EPOLL: frozenset(("epoll_wait", "epoll_pwait", "epoll_pwait2")),
    ON_POLL: frozenset(("poll", "ppoll")),
    ON_SELECT: frozenset(("select", "pselect6")),
    ON_CHILD: frozenset(("wait4", "waitid")),
}  # fmt: skip
"""Names of system calls by what their arguments say of what they wait for."""
