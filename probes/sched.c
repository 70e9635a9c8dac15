/* Scheduling events of the traced threads: when each had a core, waited for one, or was blocked, and in what.
 *
 * Knobs: SCHED_RING_PAGES, ALERT_RING_PAGES, THREADS, FOLLOW (children become traced processes).
 * The system call a thread leaves in is read from its saved registers, so no
 * system call is slowed by a tracepoint of its own.
 */
#include <uapi/linux/ptrace.h>
#include "common.h"

BPF_RINGBUF_OUTPUT(sched, SCHED_RING_PAGES);
LAYOUT(sched_event);

/* Wakes user space at once where a process was created or replaced its program; the news itself is in `sched`. */
BPF_RINGBUF_OUTPUT(alerts, ALERT_RING_PAGES);

/* thread id -> process id of every traced thread; kept by user space at attach, by fork and exit afterwards */
BPF_HASH(threads, __u32, __u32, THREADS);

#define BLOCKED_STATES 0x7f /* TASK_REPORT; higher bits: preempted */
#define CLONE_THREAD 0x10000
#define CLONE_VM 0x100
#define SYSCALL_CLONE 56 /* x86-64 */
#define SYSCALL_VFORK 58
#define SYSCALL_CLONE3 435
#define SYSCALL_FUTEX 202

/* 0 = not traced */
static __always_inline __u32 process_of(__u32 tid)
{
    __u32 *pid = threads.lookup(&tid);

    return pid ? *pid : 0;
}

static __always_inline struct sched_event *reserve(__u32 pid, __u32 tid, __u32 kind, __u64 ts)
{
    struct sched_event *event = sched.ringbuf_reserve(sizeof(*event));

    if (!event) {
        count_loss(LOSS_SCHED_RING);
        return 0;
    }
    event->ts = ts;
    event->pid = pid;
    event->tid = tid;
    event->other = 0;
    event->syscall = -1;
    event->address = 0;
    event->state = 0;
    event->cpu = bpf_get_smp_processor_id();
    event->kind = kind;
    event->other_pid = 0;
    event->reserved = 0;
    return event;
}

TRACEPOINT_PROBE(sched, sched_switch)
{
    __u32 prev = args->prev_pid, next = args->next_pid;
    __u32 prev_pid = process_of(prev), next_pid = process_of(next);
    struct sched_event *event;
    __u64 ts;

    if (!prev_pid && !next_pid)
        return 0;
    ts = bpf_ktime_get_ns();
    if (prev_pid) {
        __u64 state = args->prev_state, nr = -1, address = 0;

        if (state & BLOCKED_STATES) {
            struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

            bpf_probe_read_kernel(&nr, sizeof(nr), &regs->orig_ax);
            if (nr == SYSCALL_FUTEX)
                bpf_probe_read_kernel(&address, sizeof(address), &regs->di);
        }
        event = reserve(prev_pid, prev, SCHED_OUT, ts);
        if (event) {
            event->other = next;
            event->other_pid = next_pid;
            event->state = state;
            event->syscall = nr;
            event->address = address;
            sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
        }
    }
    if (next_pid) {
        event = reserve(next_pid, next, SCHED_IN, ts);
        if (event) {
            event->other = prev;
            event->other_pid = bpf_get_current_pid_tgid() >> 32;
            sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
        }
    }
    return 0;
}

static __always_inline void waking(__u32 tid, __u32 cpu)
{
    __u32 pid = process_of(tid);
    struct sched_event *event;
    __u64 waker;

    if (!pid)
        return;
    event = reserve(pid, tid, SCHED_WAKING, bpf_ktime_get_ns());
    if (!event)
        return;
    waker = bpf_get_current_pid_tgid();
    event->other = waker;
    event->other_pid = waker >> 32;
    event->cpu = cpu;
    sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* In the waker's context, unlike sched_wakeup, which another core may run for it. */
TRACEPOINT_PROBE(sched, sched_waking)
{
    waking(args->pid, args->target_cpu);
    return 0;
}

TRACEPOINT_PROBE(sched, sched_wakeup_new)
{
    waking(args->pid, args->target_cpu);
    return 0;
}

TRACEPOINT_PROBE(sched, sched_migrate_task)
{
    __u32 tid = args->pid, pid = process_of(tid);
    struct sched_event *event;

    if (!pid)
        return 0;
    event = reserve(pid, tid, SCHED_MIGRATE, bpf_ktime_get_ns());
    if (event) {
        event->cpu = args->dest_cpu;
        event->other = args->orig_cpu;
        sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    }
    return 0;
}

static __always_inline void alert(__u64 ts)
{
    alerts.ringbuf_output(&ts, sizeof(ts), BPF_RB_FORCE_WAKEUP);
}

static __always_inline __u64 clone_flags(void)
{
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
    __u64 nr = 0, flags = 0, argument = 0;

    bpf_probe_read_kernel(&nr, sizeof(nr), &regs->orig_ax);
    bpf_probe_read_kernel(&argument, sizeof(argument), &regs->di);
    if (nr == SYSCALL_CLONE)
        flags = argument;
    else if (nr == SYSCALL_CLONE3) /* the first field of struct clone_args */
        bpf_probe_read_user(&flags, sizeof(flags), (void *)argument);
    else if (nr == SYSCALL_VFORK)
        flags = CLONE_VM;
    return flags;
}

TRACEPOINT_PROBE(sched, sched_process_fork)
{
    __u32 parent = bpf_get_current_pid_tgid(), child = args->child_pid, pid = process_of(parent);
    struct sched_event *event;
    __u64 ts, flags;

    if (!pid)
        return 0;
    ts = bpf_ktime_get_ns();
    flags = clone_flags();
    if (!(flags & CLONE_THREAD)) {
#ifndef FOLLOW
        return 0;
#endif
        pid = child;
    }
    if (threads.update(&child, &pid)) {
        count_loss(LOSS_THREAD_MAP);
        return 0;
    }
    event = reserve(pid, child, SCHED_FORK, ts);
    if (event) {
        event->other = parent;
        event->other_pid = bpf_get_current_pid_tgid() >> 32;
        event->state = flags & CLONE_VM ? 1 : 0;
        sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    }
    if (pid == child)
        alert(ts);
    return 0;
}

TRACEPOINT_PROBE(sched, sched_process_exec)
{
    __u32 tid = args->pid, pid = process_of(tid);
    struct sched_event *event;

    if (!pid)
        return 0;
    event = reserve(pid, tid, SCHED_EXEC, bpf_ktime_get_ns());
    if (event) {
        event->other = args->old_pid; /* the thread that called exec */
        sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    }
    alert(bpf_ktime_get_ns());
    return 0;
}

TRACEPOINT_PROBE(sched, sched_process_exit)
{
    __u32 tid = args->pid, pid = process_of(tid);
    struct sched_event *event;

    if (!pid)
        return 0;
    event = reserve(pid, tid, SCHED_EXIT, bpf_ktime_get_ns());
    if (event)
        sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    threads.delete(&tid);
    return 0;
}
