"""CPU quotas of control groups: where the kernel keeps for how long a group was throttled on each core, for probes/queue.h."""

from pytrace_ebpf.record.kernel.btf import KernelTypes

NOT_KNOWN = "waits for a CPU quota are not told apart from others for a core: the kernel's type information does not say where it counts them"

_NEEDED = {
    "task_queue": ("sched_entity", "cfs_rq"),
    "queue_core": ("cfs_rq", "rq"),
    "queue_group": ("cfs_rq", "tg"),
    "group_queues": ("task_group", "cfs_rq"),
}
_EXACT = {  # since Linux 6.6, by the clock of the core
    "queue_throttling": ("cfs_rq", "throttled_clock_self"),
    "core_clock": ("rq", "clock"),
}
_BY_LOAD = {  # before, by the clock of load tracking, which may run behind while the core is slow
    "queue_throttling": ("cfs_rq", "throttled_clock_pelt"),
    "queue_throttled": ("cfs_rq", "throttle_count"),
    "core_clock": ("rq", "clock_pelt"),
    "core_idle_ns": ("rq", "lost_idle_time"),
}
_BY_TASKS = {  # before Linux 6.0
    "queue_throttling": ("cfs_rq", "throttled_clock_task"),
    "queue_throttled": ("cfs_rq", "throttle_count"),
    "core_clock": ("rq", "clock_task"),
}
_FIELDS = ("quota_known", *_NEEDED, *_BY_LOAD)


def settings(kernel: KernelTypes) -> dict[str, int]:
    """Those of sched.c that probes/queue.h needs; `quota_known` is 0 where the kernel does not say enough."""
    task = kernel.offset("task_struct", "se")
    for group in (_EXACT, _BY_LOAD, _BY_TASKS):
        found = {name: kernel.offset(*field) for name, field in (_NEEDED | group).items()}
        began, in_all = (kernel.offset("cfs_rq", group["queue_throttling"][1] + end) for end in ("", "_time"))
        if task is not None and None not in found.values() and in_all == (began or 0) + 8:  # they are read together
            offsets = {name: offset or 0 for name, offset in found.items()}
            return dict.fromkeys(_FIELDS, 0) | offsets | {"task_queue": task + offsets["task_queue"], "quota_known": 1}
    return dict.fromkeys(_FIELDS, 0)
