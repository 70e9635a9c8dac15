/* When the threads of sampled processes left their cores, and what of the time until they come back is to be sampled.
 *
 * A program runs at each switch of the whole host, thousands of times a second, and most of what it costs are misses of caches. So it touches few lines of
 * them: what this core's last switch left, and a place each for the thread that goes and for the one that comes. There it also says who is of no sampled
 * process, which holds until another process is added.
 */
#ifndef PYTRACE_AWAY_H
#define PYTRACE_AWAY_H

#include "sampled.h"

struct left {
    __u64 since;    /* 0 = it has a core */
    __u64 queued;   /* ns in the run queue until then */
    __u64 runnable; /* it lost the core, and waits for one since */
    __u64 uninterruptible;
};

/* By the last bits of a thread's id. */
struct place {
    __u64 thread; /* the sampled one that has it, as bpf_get_current_pid_tgid() says; 0 = none */
    struct left left;
    __u64 stranger; /* one that is not sampled, mixed with the census by which it is not */
    __u32 claims;   /* by threads that want it */
    __u32 pad[3];
};
#define PLACES 4096
BPF_F_TABLE("array", __u32, struct place, places, PLACES, BPF_F_MMAPABLE); /* that flag aligns it: a place is one line of a cache */

/* thread id -> that of those that found their place taken */
BPF_TABLE("lru_hash", __u32, struct left, away, 65536);

/* When a process was last added, ns. */
BPF_ARRAY(census, __u64, 1);

/* What was seen when a core was last given to another thread. */
struct coming {
    __u64 at;     /* when; 0 = nothing of its interval off the core is to be sampled, or `back` has seen it: the kernel reaches that place without a switch, too */
    __u64 point;  /* ns before that, drawn from off_period: what the thread was in at that moment is sampled */
    __u64 thread; /* as bpf_get_current_pid_tgid() says */
    __u64 census; /* by which it is sampled or not */
    __u64 sampled;
    __u64 chance; /* of the next draw */
    __u64 given;  /* when the thread got the core, where it is sampled */
    struct left left; /* the thread's, where some of that is to be sampled */
    __u64 pad[5];
};
BPF_F_TABLE("array", __u32, struct coming, comings, 1, BPF_F_MMAPABLE); /* by core: user space says how many */

/* An interval off the core as it is sampled: its parts, 0 = that part is not. */
struct off {
    __u64 waited; /* ns, in `state` */
    __u64 queued; /* ns, up to now */
    __u64 until;  /* how long ago the first part ended */
    __u32 state;  /* SAMPLE_IN_* */
    __u32 uninterruptible;
};

#define TASK_IS_UNINTERRUPTIBLE 2 /* TASK_UNINTERRUPTIBLE of the kernel */
#define TASK_IS_DEAD 0x80 /* TASK_DEAD of the kernel: this was its last switch */

/* What is known of a thread; 0 = it is of no sampled process, and that of one that was not seen before is all 0. Of two that claim a place at once none
 * gets it. */
static __always_inline struct left *known_of(__u64 thread, __u64 census)
{
    __u32 tid = thread, pid = thread >> 32, at = tid & (PLACES - 1);
    __u64 stranger = mixed(mixed(MIX, thread), census);
    struct place *place = places.lookup(&at);
    struct left none = {}, *known;

    if (!place || !thread) /* the idle task's is 0 */
        return 0;
    if (place->thread == thread)
        return &place->left;
    if (place->stranger == stranger)
        return 0;
    known = away.lookup(&tid);
    if (known)
        return known;
    if (!processes.lookup(&pid)) {
        place->stranger = stranger;
        return 0;
    }
    __sync_fetch_and_add(&place->claims, 1);
    if (*(volatile __u32 *)&place->claims == 1) {
        place->left = none;
        *(volatile __u64 *)&place->thread = thread;
        return &place->left;
    }
    __sync_fetch_and_add(&place->claims, -1);
    away.update(&tid, &none);
    return away.lookup(&tid);
}

/* The thread has ended. */
static __always_inline void forget(__u64 thread)
{
    __u32 tid = thread, at = tid & (PLACES - 1);
    struct place *place = places.lookup(&at);

    if (place && place->thread == thread) {
        *(volatile __u64 *)&place->thread = 0;
        __sync_fetch_and_add(&place->claims, -1);
    } else {
        away.delete(&tid);
    }
}

/* The current thread leaves its core. */
static __always_inline void leave(struct bpf_raw_tracepoint_args *ctx, struct left *left, __u64 at)
{
    __u32 state = OF_CURRENT(__u32, SETTINGS->task_state);

    left->since = at;
    if (SETTINGS->states) {
        left->queued = OF_CURRENT(__u64, SETTINGS->task_run_delay);
        left->runnable = ctx->args[0] || !state;
        left->uninterruptible = state & TASK_IS_UNINTERRUPTIBLE;
    }
    if (state & TASK_IS_DEAD)
        forget(bpf_get_current_pid_tgid());
}

/* A moment of off_period, by a chance that was drawn; ns. */
static __always_inline __u64 moment(__u32 chance)
{
    __u64 period = SETTINGS->off_period;

    return chance * (period >> 32) + (chance * (__u64)(__u32)period >> 32);
}

/* A thread gets this core. Of most intervals off the core nothing is sampled, and that is seen here: `back` then has nothing to do. The chance is a linear
 * congruential generator's: the kernel's would be one more line of a cache. */
static __always_inline void come(struct coming *coming, struct left *left, __u64 at)
{
    __u64 off_ns = at - left->since, chance = coming->chance ? coming->chance : bpf_get_prandom_u32();

    coming->chance = chance = chance * 6364136223846793005ULL + 1442695040888963407ULL;
    coming->point = moment(chance >> 32);
    coming->given = at;
    if (off_ns >= SETTINGS->period || coming->point < off_ns) {
        coming->left = *left;
        coming->at = at;
    }
    left->since = 0;
}

/* The thread to which a switch gives the core, as bpf_get_current_pid_tgid() will say. */
static __always_inline __u64 next_of(struct bpf_raw_tracepoint_args *ctx)
{
    __u64 task = ctx->args[2];

    if (SETTINGS->task_tgid == SETTINGS->task_pid + 4)
        return KERNEL(__u64, task + SETTINGS->task_pid);
    return (__u64)KERNEL(__u32, task + SETTINGS->task_tgid) << 32 | KERNEL(__u32, task + SETTINGS->task_pid);
}

TRACEPOINT(sched_switch)
{
    __u64 thread = bpf_get_current_pid_tgid(), at = 0, now;
    int zero = 0, cpu = bpf_get_smp_processor_id();
    struct coming *coming = comings.lookup(&cpu);
    __u64 *counted = census.lookup(&zero);
    struct left *left;

    if (!coming || !counted)
        return 0;
    now = *(volatile __u64 *)counted;
    if (coming->thread != thread || coming->census != now || coming->sampled) {
        left = known_of(thread, now);
        if (left) {
            at = bpf_ktime_get_ns();
            leave(ctx, left, at);
        }
    }
    thread = next_of(ctx);
    left = known_of(thread, now);
    coming->at = 0;
    coming->thread = thread;
    coming->census = now;
    coming->sampled = !!left;
    if (left)
        come(coming, left, at ? at : bpf_ktime_get_ns());
    return 0;
}

/* What the current thread waited for, by the system call that it is in. */
static __always_inline __u32 waited_in(const struct sampled *process)
{
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
    __u64 address = KERNEL(__u64, &regs->REGS_FIRST);

    if (KERNEL(REGS_CALL_TYPE, &regs->REGS_CALL) == SYSCALL_FUTEX && address >= process->gil_start && address < process->gil_end)
        return SAMPLE_IN_GIL;
    return SAMPLE_IN_BLOCKED;
}

/* What of the interval for which the current thread has been off the core is to be sampled; 0 = nothing. Of one that is shorter than off_period that is
 * the part in which the moment drawn lies, if any: each with the chance that its length has. */
static __always_inline int sampled_of(struct off *off, struct sampled *process, const struct coming *coming)
{
    __u64 task = bpf_get_current_task(), created = 0, off_ns, queued, point = coming->point;
    struct left left = coming->left;
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

    if (coming->at - left.since >= SETTINGS->period) { /* it may be unknown, or that of an earlier thread with this id */
        created = KERNEL(__u64, task + SETTINGS->task_start_time);
        if (left.since < process->since || left.since < created) {
            left.since = process->since < created ? created : process->since;
            left.queued = KERNEL(__u64, task + SETTINGS->task_run_delay); /* of one that was there before, how long it is queued already is not known */
            left.runnable = left.since == created || (__s32)KERNEL(REGS_CALL_TYPE, &regs->REGS_CALL) < 0;
        }
    }
    off_ns = coming->at - left.since;
    if ((__s64)off_ns <= 0) /* sampled from now on */
        return 0;
    queued = !SETTINGS->states ? 0 : left.runnable ? off_ns : KERNEL(__u64, task + SETTINGS->task_run_delay) - left.queued;
    if (queued > off_ns)
        queued = off_ns;
    if (off_ns < SETTINGS->off_period) {
        off->queued = point < queued ? queued : 0;
        off->waited = point >= queued && point < off_ns ? off_ns - queued : 0;
    } else {
        off->queued = moment(bpf_get_prandom_u32()) < queued ? queued : 0;
        off->waited = moment(bpf_get_prandom_u32()) < off_ns - queued ? off_ns - queued : 0;
    }
    if (SETTINGS->states && off->waited) {
        off->until = queued;
        off->state = waited_in(process);
        off->uninterruptible = left.uninterruptible;
    }
    return off->waited || off->queued;
}

#endif
