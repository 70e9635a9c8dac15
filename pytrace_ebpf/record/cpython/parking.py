"""Which lock a thread waits for where CPython lets it wait on a semaphore of its own, as its parking lot does from 3.13 on."""

import struct

from pytrace_ebpf import processors
from pytrace_ebpf.record.process.memory import Memory, MemoryFault
from pytrace_ebpf.trace.kinds import OBJECT_LOCK  # not of the schema: this runs where little is imported

FUTEX = processors.here().call("futex")
_NEAR = 4096  # bytes from the stack pointer in the system call to the semaphore: 256 to 296 seen on 3.13 to 3.15
_LOCK = 8  # bytes before the semaphore: `addr` of struct wait_entry (Python/parking_lot.c), the same in 3.13 to 3.15
_NODE = 32  # bytes behind the semaphore's begin: `node` (next, previous) in the circular list of those that wait

# Of sched.c, which does the same at every switch.
SETTINGS = {"parked_near": _NEAR, "parked_lock": _LOCK, "parked_node": _NODE}


def parked_for(memory: Memory, address: int, stack_pointer: int) -> int:
    """The lock's address of a thread that waits on the futex at `address`, where that is a parked thread's semaphore.

    It is one where it lies in the thread's own stack and a neighbour in the list
    behind it points back; else the answer is `address`. So it is of an object's own lock, which sched.c tells from others.
    """
    if not 0 <= address - stack_pointer < _NEAR:
        return address
    node = address + _NODE
    try:
        following, previous = struct.unpack("<QQ", memory.read(node, 16))
        if node in (memory.u64(previous), memory.u64(following + 8)):
            lock = memory.u64(address - _LOCK)
            return lock if lock and lock % 16 != OBJECT_LOCK else address
    except MemoryFault:
        pass
    return address
