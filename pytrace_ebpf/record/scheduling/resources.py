"""What threads wait for behind descriptors: where the kernel keeps that, for probes/resources.h, and the rows of `resources`."""

import os
import socket
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b

import numpy as np

from pytrace_ebpf import processors
from pytrace_ebpf.record.kernel.bpf import Programs
from pytrace_ebpf.record.kernel.btf import KernelTypes
from pytrace_ebpf.record.kernel.waiting_calls import CALLS
from pytrace_ebpf.record.output.tables import Columns
from pytrace_ebpf.record.process.memory import MemoryFault
from pytrace_ebpf.record.process.opened import ANONYMOUS, LISTENS, Descriptors, end
from pytrace_ebpf.record.scheduling.peers import Peers
from pytrace_ebpf.trace.resources import RESOURCES

RINGS = {"resources": 4 << 20, "paths": 2 << 20}  # bytes: of 15,000 sockets, and of 1,900 files, that are met between two looks at them
NOT_KNOWN = "which files and sockets were waited for is not recorded: the kernel's type information does not say where it keeps them"

_NEEDED = {
    "task_files": ("task_struct", "files"),
    "files_table": ("files_struct", "fdt"),
    "table_size": ("fdtable", "max_fds"),
    "table_files": ("fdtable", "fd"),
    "file_inode": ("file", "f_inode"),
    "file_path": ("file", "f_path"),
    "file_private": ("file", "private_data"),
    "inode_mode": ("inode", "i_mode"),
    "inode_super": ("inode", "i_sb"),
    "inode_number": ("inode", "i_ino"),
    "super_device": ("super_block", "s_dev"),
    "super_magic": ("super_block", "s_magic"),
    "dentry_parent": ("dentry", "d_parent"),
    "dentry_name": ("dentry", "d_name"),
    "mount_root": ("vfsmount", "mnt_root"),
    "mount_itself": ("mount", "mnt"),
    "mount_parent": ("mount", "mnt_parent"),
    "mount_point": ("mount", "mnt_mountpoint"),
    "socket_sock": ("socket", "sk"),
    "sock_type": ("sock", "sk_type"),
    "sock_peer": ("sock", "sk_peer_pid"),
    "sock_local6": ("sock_common", "skc_v6_rcv_saddr"),
    "sock_remote6": ("sock_common", "skc_v6_daddr"),
}
_OF_UNIX = {
    "unix_peer": ("unix_sock", "peer"),
    "unix_address": ("unix_sock", "addr"),
    "unix_length": ("unix_address", "len"),
    "unix_name": ("unix_address", "name"),
}
_OF_EPOLL = {"epoll_ready": ("eventpoll", "rdllist"), "item_link": ("epitem", "rdllink"), "item_file": ("epitem", "ffd")}

_OF_SEVERAL = {
    "sock_queue": ("sock", "sk_receive_queue"),
    "sock_accepted": ("sock", "sk_ack_backlog"),
    "sock_shut": ("sock", "sk_shutdown"),
    "pipe_head": ("pipe_inode_info", "head"),
    "pipe_tail": ("pipe_inode_info", "tail"),
    "pipe_writers": ("pipe_inode_info", "writers"),
}
_OF_PEERS = {"peer_number": ("pid", "numbers")}

_WAITS_ON = 512  # probes/resource_settings.h
_CHILD = 2  # CHILD of probes/events.h
_WHOLE = 0x80000000  # PATH_WHOLE of probes/events.h
_OF_MODE = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFIFO: "pipe"}
_ADDRESSES = {socket.AF_INET: 4, socket.AF_INET6: 16}  # bytes
_OF_SOCKET = {int(socket.SOCK_STREAM): "tcp", int(socket.SOCK_DGRAM): "udp"}


def settings(kernel: KernelTypes) -> dict[str, object]:
    """Those of probes/resource_settings.h; `resources_known` is 0 where the kernel does not say enough."""
    offsets: dict[str, object] = {}
    for group in (_NEEDED, _OF_UNIX, _OF_EPOLL, _OF_SEVERAL, _OF_PEERS):
        found = {name: kernel.offset(*field) for name, field in group.items()}
        offsets |= dict.fromkeys(group, 0) if None in found.values() else found
    waits_on, call = np.zeros(_WAITS_ON, np.uint8), processors.here().call
    for what, names in CALLS.items():
        numbers = [call(name) for name in names]
        waits_on[[number for number in numbers if number >= 0]] = what
    return {**offsets, "resources_known": int(offsets["task_files"] != 0 and offsets["sock_type"] != 0), "waits_on": waits_on}


class Resources:
    """Drains the rings of probes/resources.h."""

    def __init__(self, programs: Programs) -> None:
        """`programs`: those of sched.c."""
        self._sockets = programs.ring("resources", programs.dtype("resource_event"))
        self._files = programs.ring("paths", programs.dtype("path_event"))
        self._row = programs.dtype("path_event")["head"]
        self._met: dict[int, Columns] = {}
        self._peers = Peers()

    def drain(self) -> list[Columns]:
        """Rows of `resources` since the last call; those that rows of `sched` name that were drained before are among them.

        A row whose other end has been found since is there once more, with that.
        """
        met, self._met = self._met, {}
        new = [*met.values(), *(_columns(rows, names) for rows, names in (self._sockets.drain(_sockets), self._files.drain(_paths)) if len(rows))]
        for columns in new:
            self._peers.ask(columns)
        found = self._peers.found()
        return [*new, {name: np.array([row[name] for row in found], kind) for name, kind in _TYPES.items()}] if found else new

    def meet(self, pid: int, descriptors: Descriptors, call: int, arguments: Sequence[int]) -> int:
        """The id of what a thread waits for in system call number `call`, that was in it before anybody looked; 0 where that is not known.

        /proc says it: its row, which comes with the next drain(), has no device. When it is next waited for it is another row.
        """
        with suppress(OSError, ValueError, IndexError, MemoryFault, struct.error):
            numbers = descriptors.waited_for(_NAMES.get(call, ""), arguments)
            if len(numbers) == 1:
                found = descriptors.of(numbers[0])
                told = f"{pid} {found.link} {found.name} {found.local_name}".encode(errors="surrogateescape")
                number = int.from_bytes(blake2b(told, digest_size=8).digest(), "little") >> 1 or 1
                row = np.zeros(1, self._row)
                row["id"], row["inode"], row["pid"], row["descriptor"] = number, found.inode, pid, numbers[0]
                self._met[number] = _columns(row, [(found.kind, _text(os.fsencode(found.name)), found.local_name, found.listens, 0)])
                return number
        return 0


_NAMES = {number: name for name, number in processors.here().calls.items()}

_TYPES = {
    "resource_id": np.int64, "kind": object, "name": object, "local_name": object, "listens": bool, "pid": np.int32, "descriptor": np.int32,
    "peer_pid": np.int32, "device": np.int64, "inode": np.int64, "peer_command": object, "peer_looks": np.int32, "peer_lock_waits": np.int32,
}  # fmt: skip
_Name = tuple[str, str, str, bool, int]  # of each row: kind, name, local name, whether it listens, peer's process


def _sockets(events: np.ndarray) -> tuple[np.ndarray, list[_Name]]:
    events = events.copy()
    columns = (events[name].tolist() for name in ("family", "type", "state", "local_port", "remote_port", "named", "peer", "anonymous", "name"))
    local, remote = events["local"].tobytes(), events["remote"].tobytes()
    names: list[_Name] = []
    for at, (family, kind, state, local_port, remote_port, named, peer, anonymous, name) in enumerate(zip(*columns, strict=True)):
        size = _ADDRESSES.get(family, 0)
        if size:
            own, other = (address[16 * at : 16 * at + size] for address in (local, remote))
            names.append(_internet(kind, end(own, local_port), end(other, socket.ntohs(remote_port)), remote_port, state))
        elif family == socket.AF_UNIX:
            # An abstract name begins with a zero.
            names.append(("unix", _text(b"@" + name[1:] if name[:1] in (b"", b"\0") else name.split(b"\0")[0]) if named else "", "", False, peer))
        elif family:
            names.append(("socket", "", "", False, 0))
        elif anonymous == _CHILD:
            names.append(("child", _text(name), "", False, peer))
        elif anonymous:
            told = _text(name)
            names.append((ANONYMOUS.get(told, "other"), "" if told in ANONYMOUS else told, "", False, 0))
        else:
            names.append(("pipe", "", "", False, 0))
    return events["head"], names


def _internet(kind: int, local: str, remote: str, connected: int, state: int) -> _Name:
    called = _OF_SOCKET.get(kind, "socket")
    listens = called == "tcp" and state == LISTENS
    return called, remote if connected and not listens else local, local, listens, 0


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _paths(events: np.ndarray) -> tuple[np.ndarray, list[_Name]]:
    events = events.copy()
    rows = zip(events["head"]["mode"].tolist(), events["length"].tolist(), events["names"].tolist(), strict=True)
    return events["head"], [(_OF_MODE.get(stat.S_IFMT(mode), "other"), _path(length, names), "", False, 0) for mode, length, names in rows]


def _path(length: int, names: bytes) -> str:
    """Of struct path_event."""
    parts = names[: length & ~_WHOLE].rstrip(b"\0").split(b"\0")
    return ("/" if length & _WHOLE else ".../") + _text(b"/".join(reversed(parts)))


def _columns(events: np.ndarray, names: list[_Name]) -> Columns:
    """Of rows of struct resource_head."""
    kinds, called, local, listens, peers = zip(*names, strict=True)
    said = {"kind": kinds, "name": called, "local_name": local, "listens": listens, "peer_pid": peers, "peer_command": [""] * len(names)}
    said |= dict.fromkeys(("peer_looks", "peer_lock_waits"), [0] * len(names))
    numbers = {"resource_id": "id"}
    columns = {name: np.array(said[name], kind) if name in said else events[numbers.get(name, name)].astype(kind) for name, kind in _TYPES.items()}
    assert tuple(columns) == tuple(column.name for column in RESOURCES.columns)
    return columns
