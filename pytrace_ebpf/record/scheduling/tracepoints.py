"""The kernel's tracepoints that scheduling is read by, by what they show, and what there is not without those that a kernel may lack."""

LIVES = ("sched_process_fork", "sched_process_exec", "sched_process_exit")
# Each missing event would make the split wrong. (Of a wake-up only the time in the run queue would be, and that is part of blocked then.)
EXACT = ("sched_switch", *LIVES)
TRACEPOINTS = {
    "wake-ups": ("sched_waking", "sched_wakeup_new"),
    "migrations": ("sched_migrate_task",),
    "interrupts": ("hrtimer_expire_entry", "hrtimer_expire_exit", "irq_handler_entry", "irq_handler_exit", "softirq_entry", "softirq_exit"),
    "memory": ("mark_victim",),
}
WITHOUT = {
    "wake-ups": "this kernel does not report every wake-up, so that of a wait neither who ended it nor its time in the run queue is known",
    "migrations": "this kernel does not report when a thread is moved to another core, so that such moves are not counted",
    "interrupts": "this kernel does not report when a core is in an interrupt, so that a thread that one woke counts as woken by whatever ran there",
    "memory": "this kernel does not report which process it ends to free memory, so that such an end counts as a kill by anybody",
}
NOT_NEEDED = tuple(name for names in TRACEPOINTS.values() for name in names)
