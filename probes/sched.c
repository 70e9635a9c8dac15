/* Scheduling events of the traced threads: when each had a core, waited for one, or was blocked, and in what.
 *
 * The system call a thread leaves in is read from its saved registers, so no
 * system call is slowed by a tracepoint of its own; who holds the GIL is read
 * from the thread's own memory while it is still the current one.
 */
#include <uapi/linux/ptrace.h>
#include "common.h"
#include "processor.h"
#include "resource_settings.h"

struct settings {
    __u32 follow;         /* children become traced processes */
    __u32 state_given;    /* sched_switch has the state of the thread that leaves as an argument: Linux 5.18 */
    __u32 task_pid;       /* offsets in the kernel's struct task_struct */
    __u32 task_state;
    __u32 task_exit_state;
    __u32 task_cpu;
    __u32 parked_near;    /* of a thread that waits for a lock of CPython's: record/cpython/parking.py */
    __u32 parked_lock;
    __u32 parked_node;
    __u32 ends_known;     /* the next five are */
    __u32 task_exit_code;
    __u32 task_leader;
    __u32 task_signal;
    __u32 signal_flags;   /* offsets in struct signal_struct */
    __u32 signal_exit_code;
    __u32 task_thread_pid; /* 0: this and the next two are not known */
    __u32 pid_level;      /* offsets in struct pid */
    __u32 pid_numbers;
    __u32 quota_known;    /* 0: none of the offsets below is: record/scheduling/quota.py */
    __u32 task_queue;     /* offset in struct task_struct of the cfs_rq that it is on */
    __u32 queue_core;     /* offsets in struct cfs_rq: of its rq, of its group, */
    __u32 queue_group;
    __u32 queue_throttling; /* of when it was throttled, and for how long in all before, */
    __u32 queue_throttled;  /* of whether it is; 0: the moment says it */
    __u32 core_clock;     /* offsets in struct rq: of the clock of these, and of what is to be taken off that; 0: nothing */
    __u32 core_idle_ns;
    __u32 group_queues;   /* offset in struct task_group */
    RESOURCE_SETTINGS
};
LAYOUT(settings);
#define MAY_NAME(user, ring, size) 1
#include "resources.h"
#include "descriptors.h"

BPF_RINGBUF_OUTPUT(sched, RING_PAGES);
LAYOUT(sched_event);

/* Wakes user space at once where a process was created or replaced its program; the news itself is in `sched`. */
BPF_RINGBUF_OUTPUT(alerts, RING_PAGES);

BPF_RINGBUF_OUTPUT(faults, RING_PAGES);
LAYOUT(fault_event);

/* What began by exec, which may have ended before anybody looks. */
BPF_RINGBUF_OUTPUT(programs, RING_PAGES);
LAYOUT(program_event);

/* A traced thread, and its wait in the run queue: queue.h. */
struct traced {
    __u64 queue;     /* the cfs_rq in which it waits for a core */
    __u64 began;     /* when that wait began */
    __u64 base;      /* for how long that cfs_rq had been throttled by then, or by its coming here */
    __u64 throttled; /* for how long those were that it has been moved from during this wait */
    __u32 pid;
    __u32 core;      /* one more than that of the run queue in which it waits; 0: it does not wait for one */
    __u32 counted;   /* 1: among those that wait for it */
    __u32 pad;
};

/* By thread id; kept by user space at attach, by fork and exit afterwards. */
BPF_HASH(threads, __u32, struct traced, 65536);

/* Where a Python keeps who holds its GIL, and in a build without one what threads wait for instead.
 * Written by user space (record/cpython/gil.py); a forked child has its creator's. */
struct gil {
    __u64 holder;            /* address of last_holder; `locked` lies behind it */
    __u64 enabled;           /* address of the int that says whether there is one now; 0: always */
    __u64 runtime_world;     /* addresses of struct _stoptheworld_state; 0 in builds with a GIL */
    __u64 interpreter_world; /* the main interpreter's */
    __u32 thread_id;         /* offset of the thread's id in a thread state */
    __u32 pthread_tid;       /* not 0: what is there is a pthread_t, with the id at this offset */
    __u32 thread_attached;   /* offset of `state` in a thread state */
    __u32 object_type;       /* offset of an object's type */
    __u32 inside;            /* the process is in a pid namespace of its own: the ids are not the host's */
    __u32 interpreter_gil;   /* offset of the pointer to its GIL in an interpreter, 0: all have one */
    __u64 interpreters;      /* address of how many it has made */
};
BPF_HASH(gils, __u32, struct gil, 16384);

/* Processes that the kernel is killing for want of memory. */
BPF_TABLE("lru_hash", __u32, __u32, victims, 1024);

/* Interrupt handlers that run on this core in the current thread's context: then that thread is not the waker. */
BPF_PERCPU_ARRAY(interrupts, __u32, 1);
#define SOFTIRQ_TIMER 1
#define SOFTIRQ_BLOCK 4

/* include/linux/sched.h */
#define BLOCKED_STATES 0x7f /* TASK_REPORT */
#define PREEMPTED 0x100     /* TASK_REPORT_MAX */
#define IDLE 0x402          /* TASK_IDLE: sleeps and is not counted as load */
#define IDLE_REPORTED 0x80
#define UNINTERRUPTIBLE 2
#define UNINTERRUPTIBLE_TOO 0x9000 /* TASK_RTLOCK_WAIT, TASK_FROZEN */

#define CLONE_THREAD 0x10000
#define CLONE_VM 0x100

#define FIELD(task, offset) ({ __u32 taken = 0; bpf_probe_read_kernel(&taken, sizeof(taken), (void *)(task) + (offset)); taken; })

#include "queue.h"

/* 0 = not traced */
static __always_inline __u32 process_of(__u32 tid)
{
    struct traced *traced = threads.lookup(&tid);

    return traced ? traced->pid : 0;
}

static __always_inline __u32 interrupted(void)
{
    int zero = 0;
    __u32 *by = interrupts.lookup(&zero);

    return by ? *by : 0;
}

/* thread id -> what it waits for, while that may be one of several descriptors */
BPF_TABLE("lru_hash", __u32, struct polled, polls, 4096);

/* What the current thread waits for, that leaves its core in system call `nr` with `first` as its first argument; 0: that is not known, or not yet. */
static __always_inline __u64 resource_waited_for(__u32 pid, __u32 tid, __u64 nr, __u64 first, struct pt_regs *regs)
{
    struct polled polled = {};
    __u64 file;
    __s32 descriptor;
    __u8 on;

    asm volatile("" : "+r"(nr)); /* or the compiler checks another register than it uses, where numbers have 32 bits */
    if (!SETTINGS->resources_known || nr >= WAITS_ON)
        return 0;
    on = SETTINGS->waits_on[nr];
    if (on == ON_NOTHING)
        return 0;
    if (on == ON_CHILD) {
        polled.child = 1;
        polls.update(&tid, &polled);
        return 0;
    }
    descriptor = only_descriptor(on, first, regs);
    if (descriptor < 0) {
        if (SETTINGS->sock_queue) {
            take_polled(&polled, on, first, regs);
            polls.update(&tid, &polled);
        }
        return 0;
    }
    file = file_behind(bpf_get_current_task(), descriptor);
    if (on == ON_EPOLL && SETTINGS->epoll_ready) {
        polled.instance = file ? KERNEL(__u64, file + SETTINGS->file_private) : 0;
        polls.update(&tid, &polled);
    }
    return resource_of(file, 0, pid, descriptor);
}

/* Which of several descriptors is ready, or which child has ended, that a thread waits for, which is woken at `ts`; 0: none, or it waits for no such. */
static __always_inline __u64 resource_ready(__u32 pid, __u32 tid, __u64 task, __u64 ts)
{
    struct polled *polled = polls.lookup(&tid);
    __s32 descriptor = -1;
    __u64 file;

    if (!polled)
        return 0;
    if (polled->child) {
        polls.delete(&tid);
        return interrupted() || bpf_get_current_pid_tgid() >> 32 == pid ? 0 : resource_of_child(0, pid, ts);
    }
    file = first_ready(task, polled, &descriptor);
    polls.delete(&tid);
    return file ? resource_of(file, 0, pid, descriptor) : 0;
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
    event->holder = HOLDER_UNKNOWN;
    event->resource = 0;
    return event;
}

/* Of the GIL whose last_holder is at `of`. `tid` of `pid` is current. Memory that is not there faults nothing in: then the holder is not known. */
static __always_inline __s32 gil_holder(struct gil *gil, __u64 of, __u32 pid, __u32 tid)
{
    struct {
        __u64 state;
        __u64 locked; /* an int, and what is behind it */
    } now;
    __u64 id = 0;
    __u32 holder, enabled = 0;

    if (gil && gil->enabled && (bpf_probe_read_user(&enabled, sizeof(enabled), (void *)gil->enabled) || !enabled))
        return HOLDER_UNKNOWN;
    if (!gil || bpf_probe_read_user(&now, sizeof(now), (void *)of))
        return HOLDER_UNKNOWN;
    if ((__u32)now.locked != 1) /* -1 before there is a GIL */
        return 0;
    if (bpf_probe_read_user(&id, sizeof(id), (void *)(now.state + gil->thread_id)))
        return HOLDER_UNKNOWN;
    if (gil->pthread_tid && bpf_probe_read_user(&id, sizeof(id), (void *)(id + gil->pthread_tid)))
        return HOLDER_UNKNOWN;
    holder = id;
    if (holder && (gil->inside || holder == tid || process_of(holder) == pid))
        return holder;
    return HOLDER_UNKNOWN; /* a fork has its creator's id until it has noticed */
}

static __always_inline int holds(__u64 address, __u64 wanted)
{
    __u64 found = 0;

    return !bpf_probe_read_user(&found, sizeof(found), (void *)address) && found == wanted;
}

/* Where the current thread waits on the futex at `address`, for which lock: see record/cpython/parking.py. Either neighbour will
 * do, because one of them may be taken out of the list on another core just now.
 */
static __always_inline __u64 parked_for(__u64 address, __u64 stack_pointer)
{
    __u64 lock = 0, node = address + SETTINGS->parked_node;
    struct {
        __u64 next, previous;
    } links;

    if (address - stack_pointer >= SETTINGS->parked_near || bpf_probe_read_user(&links, sizeof(links), (void *)node))
        return address;
    if (!holds(links.previous, node) && !holds(links.next + sizeof(node), node))
        return address;
    bpf_probe_read_user(&lock, sizeof(lock), (void *)(address - SETTINGS->parked_lock));
    return lock ? lock : address;
}

/* Include/internal/pycore_interp.h and pycore_pystate.h, without a GIL */
#define WORLD_SIZE 24 /* sizeof(struct _stoptheworld_state) */
#define SUSPENDED 2   /* _Py_THREAD_SUSPENDED */

/* Of a thread that is parked for `lock`, whether that is its own state, from which who has stopped the world will release it, or the
 * state of the pause that it is about to make itself.
 */
static __always_inline int is_pause(struct gil *gil, __u64 lock, __u32 tid)
{
    __u64 state = lock - gil->thread_attached, id = 0;
    __u32 attached = 0;

    if (lock - gil->runtime_world < WORLD_SIZE || lock - gil->interpreter_world < WORLD_SIZE)
        return 1;
    bpf_probe_read_user(&attached, sizeof(attached), (void *)lock);
    bpf_probe_read_user(&id, sizeof(id), (void *)(state + gil->thread_id));
    return id == tid || (gil->inside && id && attached == SUSPENDED);
}

/* Whether it is an object: its type's type's type, at the latest, is `type`, whose type is itself. */
static __always_inline int is_object(struct gil *gil, __u64 address)
{
    __u64 type = address, of = 0;
    int i;

#pragma unroll
    for (i = 0; i < 4; i++) {
        if (bpf_probe_read_user(&of, sizeof(of), (void *)(type + gil->object_type)) || !of)
            return 0;
        if (of == type)
            return i > 0;
        type = of;
    }
    return 0;
}

/* What the current thread waits for, that is in futex(`address`). */
static __always_inline __u64 waits_for(struct gil *gil, __u32 tid, __u64 address, __u64 stack_pointer)
{
    __u64 lock = parked_for(address, stack_pointer);

    if (lock == address)
        return address;
    if (gil && gil->runtime_world && is_pause(gil, lock, tid))
        return PAUSED;
    if ((lock & 15) == OBJECT_LOCK && !(gil && gil->runtime_world && is_object(gil, lock - OBJECT_LOCK)))
        return address; /* what ends so shall be an object's */
    return lock;
}

/* Include/internal/pycore_gil.h and pycore_tstate.h, from 3.12 on; the words that threads sleep on are those of glibc's pthread_cond_t, before and since 2.41, and pthread_mutex_t */
#define GIL_HOLDER 8
#define THREAD_INTERPRETER 16

/* Whether there is the GIL of the interpreter that its last holder is of. */
static __always_inline int is_gil(struct gil *gil, __u64 start)
{
    __u64 state = 0, interpreter = 0;

    if (start & 7 || bpf_probe_read_user(&state, sizeof(state), (void *)(start + GIL_HOLDER)) || !state || state & 7)
        return 0;
    if (bpf_probe_read_user(&interpreter, sizeof(interpreter), (void *)(state + THREAD_INTERPRETER)) || !interpreter || interpreter & 7)
        return 0;
    return holds(interpreter + gil->interpreter_gil, start);
}

/* Whether the futex at `address` is the GIL's of an interpreter beside the main one, which then has who holds it: its first byte; 0: it is not. */
static __always_inline __u64 other_gil(struct gil *gil, __u64 address)
{
    __u64 made = 0;

    if (!gil || !gil->interpreter_gil || address - (gil->holder - GIL_HOLDER) < GIL_SIZE)
        return 0;
    if (bpf_probe_read_user(&made, sizeof(made), (void *)gil->interpreters) || made < 2)
        return 0;
#define TRY(word) \
    if (is_gil(gil, address - (word))) \
        return address - (word);
    TRY(64) TRY(72) TRY(152) TRY(160) TRY(68) TRY(76) TRY(156) TRY(164) TRY(80) TRY(168)
#undef TRY
    return 0;
}

/* The state of the thread that leaves the core, as it has it. */
static __always_inline __u32 own_state(struct bpf_raw_tracepoint_args *ctx)
{
    return SETTINGS->state_given ? (__u32)ctx->args[3] : FIELD(ctx->args[1], SETTINGS->task_state);
}

/* The same, as the kernel reports it (__trace_sched_switch_state): one bit, 0 = runnable. */
static __always_inline __u32 reported_state(struct bpf_raw_tracepoint_args *ctx)
{
    __u64 task = ctx->args[1];
    __u32 state, reported, bit = BLOCKED_STATES + 1;
    int i;

    if (ctx->args[0])
        return PREEMPTED;
    state = own_state(ctx);
    if ((state & IDLE) == IDLE)
        return IDLE_REPORTED;
    if (state & UNINTERRUPTIBLE_TOO)
        return UNINTERRUPTIBLE;
    reported = (state | FIELD(task, SETTINGS->task_exit_state)) & BLOCKED_STATES;
#pragma unroll
    for (i = 0; i < 7 && reported < bit; i++)
        bit >>= 1;
    return reported ? bit : 0;
}

TRACEPOINT(sched_switch)
{
    __u32 prev = bpf_get_current_pid_tgid(), next = FIELD(ctx->args[2], SETTINGS->task_pid);
    struct traced *leaves = threads.lookup(&prev), *comes = threads.lookup(&next);
    __u32 prev_pid = leaves ? leaves->pid : 0, next_pid;
    struct sched_event *event;
    __u64 ts;

    if (!leaves)
        external_leaves(prev);
    if (!leaves && !comes)
        return 0;
    ts = bpf_ktime_get_ns();
    /* The verifier follows all that comes below for each value that is still needed then: so this is done before, and who comes is looked up again. */
    if (comes)
        note_throttled(queue_left(comes, ts));
    if (leaves) {
        queue_left(leaves, 0);
        if (ctx->args[0] || !own_state(ctx))
            queue_entered(leaves, ctx->args[1], bpf_get_smp_processor_id(), ts);
    }
    if (prev_pid) {
        __u64 state = reported_state(ctx), address = 0, stack_pointer = 0, resource = 0;
        REGS_CALL_TYPE nr = -1;
        struct gil *gil = gils.lookup(&prev_pid);
        __u64 of = gil ? gil->holder : 0, other;
        __s32 holder;

        if (state & BLOCKED_STATES) {
            struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

            bpf_probe_read_kernel(&nr, sizeof(nr), &regs->REGS_CALL);
            if ((__s32)nr >= 0)
                bpf_probe_read_kernel(&address, sizeof(address), &regs->REGS_FIRST);
            if (nr == SYSCALL_FUTEX) {
                bpf_probe_read_kernel(&stack_pointer, sizeof(stack_pointer), &regs->REGS_SP);
                address = waits_for(gil, prev, address, stack_pointer);
                other = other_gil(gil, address);
                if (other) {
                    address = other | OTHER_GIL;
                    of = other + GIL_HOLDER;
                }
            } else {
                resource = resource_waited_for(prev_pid, prev, nr, address, regs);
            }
        }
        holder = gil_holder(gil, of, prev_pid, prev);
        next_pid = process_of(next);
        event = reserve(prev_pid, prev, SCHED_OUT, ts);
        if (event) {
            event->other = next;
            event->other_pid = next_pid;
            event->state = state;
            event->syscall = (__s64)nr;
            event->address = address;
            event->holder = holder;
            event->resource = resource;
            sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
        }
    } else {
        next_pid = process_of(next);
    }
    if (next_pid) {
        event = reserve(next_pid, next, SCHED_IN, ts);
        if (event) {
            event->other = prev;
            event->other_pid = bpf_get_current_pid_tgid() >> 32;
            event->address = throttled_before();
            sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
        }
    }
    return 0;
}

static __always_inline void interrupt(__u32 by, int begins)
{
    int zero = 0;
    __u32 *now = interrupts.lookup(&zero);

    if (now)
        *now = begins ? *now | by : *now & ~by;
}

TRACEPOINT(hrtimer_expire_entry)
{
    interrupt(BY_TIMER, 1);
    return 0;
}

TRACEPOINT(hrtimer_expire_exit)
{
    interrupt(BY_TIMER, 0);
    return 0;
}

TRACEPOINT(irq_handler_entry)
{
    interrupt(BY_DEVICE, 1);
    return 0;
}

TRACEPOINT(irq_handler_exit)
{
    interrupt(BY_DEVICE, 0);
    return 0;
}

/* Not of the network: what a thread sends to its own host wakes the receiver in a softirq of the sender's. */
static __always_inline int by_softirq(__u32 vector)
{
    return vector == SOFTIRQ_TIMER || vector == SOFTIRQ_BLOCK;
}

TRACEPOINT(softirq_entry)
{
    if (by_softirq(ctx->args[0]))
        interrupt(BY_SOFTIRQ, 1);
    return 0;
}

TRACEPOINT(softirq_exit)
{
    if (by_softirq(ctx->args[0]))
        interrupt(BY_SOFTIRQ, 0);
    return 0;
}

static __always_inline void waking(__u64 task, int waited)
{
    __u32 tid = FIELD(task, SETTINGS->task_pid), cpu;
    struct traced *traced = threads.lookup(&tid);
    struct sched_event *event;
    __u64 waker, resource, ts;

    if (!traced)
        return;
    ts = bpf_ktime_get_ns();
    resource = waited && SETTINGS->resources_known ? resource_ready(traced->pid, tid, task, ts) : 0;
    cpu = FIELD(task, SETTINGS->task_cpu);
    queue_left(traced, 0);
    queue_entered(traced, task, cpu, ts);
    event = reserve(traced->pid, tid, SCHED_WAKING, ts);
    if (!event)
        return;
    event->state = interrupted();
    waker = event->state ? 0 : bpf_get_current_pid_tgid();
    event->other = waker;
    event->other_pid = waker >> 32;
    event->cpu = cpu;
    event->resource = resource;
    sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* In the waker's context, unlike sched_wakeup, which another core may run for it. */
TRACEPOINT(sched_waking)
{
    waking(ctx->args[0], 1);
    return 0;
}

TRACEPOINT(sched_wakeup_new)
{
    waking(ctx->args[0], 0);
    return 0;
}

TRACEPOINT(sched_migrate_task)
{
    __u32 tid = FIELD(ctx->args[0], SETTINGS->task_pid);
    struct traced *traced = threads.lookup(&tid);
    struct sched_event *event;

    if (!traced)
        return 0;
    queue_moved(traced, ctx->args[1]);
    event = reserve(traced->pid, tid, SCHED_MIGRATE, bpf_ktime_get_ns());
    if (event) {
        event->cpu = ctx->args[1];
        event->other = FIELD(ctx->args[0], SETTINGS->task_cpu);
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
    __u64 flags = 0, argument = 0;
    REGS_CALL_TYPE nr = 0;

    bpf_probe_read_kernel(&nr, sizeof(nr), &regs->REGS_CALL);
    bpf_probe_read_kernel(&argument, sizeof(argument), &regs->REGS_FIRST);
    if (nr == SYSCALL_CLONE)
        flags = argument;
    else if (nr == SYSCALL_CLONE3) /* the first field of struct clone_args */
        bpf_probe_read_user(&flags, sizeof(flags), (void *)argument);
    else if (nr == SYSCALL_VFORK)
        flags = CLONE_VM;
    return flags;
}

static __always_inline void inherit_gil(__u32 creator, __u32 child)
{
    struct gil *of_creator = gils.lookup(&creator), gil;

    if (of_creator) {
        gil = *of_creator;
        gils.update(&child, &gil);
    }
}

#define UPID_SIZE 16 /* sizeof(struct upid), which begins with the number */

/* What a thread's own pid namespace calls it; 0 where that is the host's. */
static __always_inline __u32 id_inside(__u64 task)
{
    __u64 pid = 0;
    __u32 level;

    if (!SETTINGS->task_thread_pid || bpf_probe_read_kernel(&pid, sizeof(pid), (void *)(task + SETTINGS->task_thread_pid)) || !pid)
        return 0;
    level = FIELD(pid, SETTINGS->pid_level);
    return level ? FIELD(pid, SETTINGS->pid_numbers + level * UPID_SIZE) : 0;
}

TRACEPOINT(sched_process_fork)
{
    __u32 parent = bpf_get_current_pid_tgid(), child = FIELD(ctx->args[1], SETTINGS->task_pid), pid = process_of(parent);
    struct traced traced = {};
    struct sched_event *event;
    __u64 ts, flags;

    if (!pid)
        return 0;
    ts = bpf_ktime_get_ns();
    flags = clone_flags();
    if (!(flags & CLONE_THREAD)) {
        if (!SETTINGS->follow)
            return 0;
        pid = child;
    }
    traced.pid = pid;
    if (threads.update(&child, &traced)) {
        count_loss(LOSS_THREAD_MAP);
        return 0;
    }
    if (!(flags & CLONE_VM)) /* not before: the exit of a thread that is not traced takes nothing out of the map */
        inherit_gil(bpf_get_current_pid_tgid() >> 32, child);
    event = reserve(pid, child, SCHED_FORK, ts);
    if (event) {
        event->other = parent;
        event->other_pid = bpf_get_current_pid_tgid() >> 32;
        event->state = flags & CLONE_VM ? 1 : 0;
        event->address = id_inside(ctx->args[1]);
        sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    }
    if (pid == child)
        alert(ts);
    return 0;
}

#define MOST_WORDS 65536
#define PAGE 4096

/* The arguments of the current process's new program, from the top of its stack: how many, their addresses, a zero, those of the environment.
 * Without a row they are read from /proc, if it is still there. */
static __always_inline void tell_program(__u32 pid, __u64 ts)
{
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
    __u64 top = 0, first = 0, end = 0, count = 0, size;
    struct program_event *event;

    bpf_probe_read_kernel(&top, sizeof(top), &regs->REGS_SP);
    if (bpf_probe_read_user(&count, sizeof(count), (void *)top) || !count || count > MOST_WORDS || /* a program of 32 bits has other widths */
        bpf_probe_read_user(&first, sizeof(first), (void *)(top + 8)) ||
        bpf_probe_read_user(&end, sizeof(end), (void *)(top + 8 * (count + 2))))
        return;
    size = end ? end - first : PAGE - (first & (PAGE - 1)); /* without an environment: what is sure to be there */
    event = programs.ringbuf_reserve(sizeof(*event));
    if (!event)
        return;
    if (size > sizeof(event->words))
        size = sizeof(event->words);
    event->ts = ts;
    event->pid = pid;
    event->count = count;
    event->size = size;
    if (bpf_probe_read_user(event->words, size, (void *)first))
        programs.ringbuf_discard(event, BPF_RB_NO_WAKEUP);
    else
        programs.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

TRACEPOINT(sched_process_exec)
{
    __u32 tid = bpf_get_current_pid_tgid(), pid = process_of(tid);
    struct sched_event *event;
    __u64 ts = bpf_ktime_get_ns();

    if (!pid)
        return 0;
    tell_program(pid, ts); /* before its row: who has that has this */
    event = reserve(pid, tid, SCHED_EXEC, ts);
    if (event) {
        event->other = ctx->args[1]; /* the thread that called exec */
        sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    }
    gils.delete(&pid);
    alert(ts);
    return 0;
}

/* Since Linux 6.9 the task, before its id. */
TRACEPOINT(mark_victim)
{
    __u64 of = ctx->args[0];
    __u32 tid = of >> 32 ? FIELD(of, SETTINGS->task_pid) : of, pid = process_of(tid);

    if (pid)
        victims.update(&pid, &tid);
    return 0;
}

#define GROUP_EXIT 4 /* include/linux/sched/signal.h: SIGNAL_GROUP_EXIT */

/* What wait() gives of the current process, as it stands now: the last of its threads to end has the last word. */
static __always_inline __u32 exit_status(__u32 pid)
{
    __u64 task = bpf_get_current_task(), leader = 0, signal = 0;
    __u32 status;

    if (!SETTINGS->ends_known || bpf_probe_read_kernel(&leader, sizeof(leader), (void *)(task + SETTINGS->task_leader)) ||
        bpf_probe_read_kernel(&signal, sizeof(signal), (void *)(task + SETTINGS->task_signal)))
        return 0;
    status = FIELD(signal, SETTINGS->signal_flags) & GROUP_EXIT ? FIELD(signal, SETTINGS->signal_exit_code) : FIELD(leader, SETTINGS->task_exit_code);
    return (status & 0xffff) | EXIT_KNOWN | (victims.lookup(&pid) ? EXIT_FOR_MEMORY : 0);
}

/* Whether the current thread, not the first of its process, has the name that the agent's thread gives itself (probes/agent/errands.c). */
static __always_inline __u32 of_agent(__u32 pid, __u32 tid)
{
    static const char name[] = "pytrace-agent";
    char comm[16] = {};
    int i;

    if (pid == tid || bpf_get_current_comm(comm, sizeof(comm)))
        return 0;
#pragma unroll
    for (i = 0; i < sizeof(name); i++)
        if (comm[i] != name[i])
            return 0;
    return EXIT_OF_AGENT;
}

TRACEPOINT(sched_process_exit)
{
    __u32 tid = bpf_get_current_pid_tgid();
    struct traced *traced = threads.lookup(&tid);
    struct sched_event *event;
    __u32 pid;

    if (!traced)
        return 0;
    pid = traced->pid;
    queue_left(traced, 0);
    event = reserve(pid, tid, SCHED_EXIT, bpf_ktime_get_ns());
    if (event) {
        event->state = exit_status(pid) | of_agent(pid, tid);
        sched.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    }
    threads.delete(&tid);
    if (tid == pid) {
        gils.delete(&pid);
        victims.delete(&pid);
    }
    return 0;
}

static __always_inline void fault(__u32 kind)
{
    __u64 pid_tgid = bpf_get_current_pid_tgid();
    struct fault_event *event;

    if (!process_of(pid_tgid))
        return;
    event = faults.ringbuf_reserve(sizeof(*event));
    if (!event) {
        count_loss(LOSS_FAULT_RING);
        return;
    }
    event->ts = bpf_ktime_get_ns();
    event->pid_tgid = pid_tgid;
    event->size = 0;
    event->kind = kind;
    event->sort = 0;
    event->foreign = 0;
    faults.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

int fault_minor(struct bpf_perf_event_data *ctx)
{
    fault(FAULT_MINOR);
    return 0;
}

int fault_major(struct bpf_perf_event_data *ctx)
{
    fault(FAULT_MAJOR);
    return 0;
}

/* The kernel's event format: events/kmem/rss_stat. */
struct rss_stat {
    __u64 common;
    __u32 mm_id;
    __u32 curr;
    __s32 member;
    __u32 pad;
    __s64 size;
};

int resident(struct rss_stat *ctx)
{
    __u64 pid_tgid = bpf_get_current_pid_tgid();
    struct fault_event *event;

    if (!ctx->curr || !process_of(pid_tgid))
        return 0;
    event = faults.ringbuf_reserve(sizeof(*event));
    if (!event) {
        count_loss(LOSS_FAULT_RING);
        return 0;
    }
    event->ts = bpf_ktime_get_ns();
    event->pid_tgid = pid_tgid;
    event->size = ctx->size;
    event->kind = FAULT_RESIDENT;
    event->sort = ctx->member;
    event->foreign = 0;
    faults.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    return 0;
}
