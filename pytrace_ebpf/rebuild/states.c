/* What state a thread is in after each of its scheduling events: why a call's on_cpu_ns, runq_wait_ns, gil_wait_ns or blocked_ns is that number.
 *
 * Each of the four is the time from the call's entry to its end that its thread was in one state. A state begins with one scheduling event of
 * the thread (table `sched`) and lasts up to the next; every rule for that stands in this file, and waits, timelines and reports go by it, too.
 * timeline.c adds up the time in each state, calls.c takes what that has grown by from the call's entry to its end. So a call's gil_wait_ns is
 * the sum, within the call, of the intervals that
 *
 *     begin  where its thread leaves its core (OUT) by itself, in a futex call whose address lies within its process's GIL, or another interpreter's own: waits_for()
 *     end    where it is woken (WAKING). From there on it is in the run queue (runq_wait_ns), until it has a core (IN)
 *
 * CPython waits for the GIL 5 ms at a time, then asks for it and waits anew: so a long wait is several such intervals, with a little of
 * runq_wait_ns and on_cpu_ns between. Where a process's GIL is not known (gil_start and gil_end of table `processes` are 0) it is all blocked_ns.
 *
 * A number is null where the state is not known all the time from entry to end: before the thread's first event, from a loss of scheduling
 * events to the thread's next one, and, with source perf, which tells neither system call nor wake-up, for the parts of what is off the core.
 * And where the kernel did not report an event, which the next one shows: states_turned_out(). Only the parts that depend on it are null.
 * Source cputime has no events; there curve.c draws CPU time, and waits are null. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

#define FUTEX 202            /* x86-64 */
#define SYSCALL_UNKNOWN (-2) /* source perf */
#define OTHER_GIL 5          /* probes/events.h: the last three bits of an address */
#define STILL_RUNNABLE 0x7f  /* no bit of it set: preempted, not blocked (facts of the sched_switch tracepoint) */

/* It left its core though it had something to do. */
static bool runnable(const struct sched_row *row)
{
    return !(row->state & STILL_RUNNABLE);
}

/* What a thread that left its core by itself waits for: a futex within the GIL's structure (its lock, or what its condition variables consist of), or one of which
 * the kernel half has said that it is another interpreter's GIL, is a wait for the GIL; any other system call, and none at all (a page fault), is blocked. Source perf does not tell. */
static uint8_t waits_for(const struct sched_row *row, int64_t gil_start, int64_t gil_end)
{
    if (row->syscall == SYSCALL_UNKNOWN)
        return OFF;
    bool within = row->address >= gil_start && row->address < gil_end;
    return row->syscall == FUTEX && (within || (row->address & 7) == OTHER_GIL) ? GIL : BLOCKED;
}

/* A snapshot is read by what follows it in the segment: who gets a core was in the run queue, who leaves one had it, who is
 * woken was blocked. */
static uint8_t snapshot(const struct sched_row *row, const struct sched_row *end, int64_t gil_start, int64_t gil_end)
{
    const struct sched_row *next = row + 1;
    while (next < end && (next->kind == MIGRATE || next->kind == SNAPSHOT))
        next++;
    int following = next < end ? next->kind : -1;
    uint8_t waits = waits_for(row, gil_start, gil_end);
    if (following == IN && (runnable(row) || waits != OFF))
        return RUNQ;
    return following == OUT || following == EXIT || runnable(row) ? ON_CPU : waits;
}

/* What a state was, as the kind of the thread's next event shows: another one where an event between the two was not reported, as kernels on virtual
 * machines leave out some. Who gets a core without having been woken was, from some moment on, in the run queue and not blocked; who leaves one without
 * having got it had it, from some moment on. */
uint8_t states_turned_out(uint8_t state, uint8_t next)
{
    bool waited = state == GIL || state == BLOCKED;
    if (next == IN)
        return waited ? SLEPT : state == ON_CPU ? UNSEEN : state;
    if (next == OUT || next == EXIT)
        return state == RUNQ ? READY : waited || state == OFF ? UNSEEN : state;
    return state;
}

/* What was not reported then: bits 1 << kind. */
static uint8_t not_reported(uint8_t state, uint8_t next)
{
    if (next == IN)
        return state == ON_CPU ? 1 << OUT : 1 << WAKING;
    if (next == WAKING)
        return 1 << IN | 1 << OUT;
    return state == GIL || state == BLOCKED ? 1 << WAKING | 1 << IN : 1 << IN;
}

/* A thread that was woken in the moment in which it left its core, on which it was still: that counts from when it had. Row `woke` becomes `left`. */
static void wake_when_it_had_left(struct sched_row *rows, uint8_t *to, size_t woke, size_t left)
{
    struct sched_row row = rows[woke];
    row.ts = rows[left].ts;
    memmove(rows + woke, rows + woke + 1, (left - woke) * sizeof *rows);
    memmove(to + woke, to + woke + 1, left - woke);
    rows[left] = row;
    to[left] = RUNQ;
}

/* `to`: the state after each of a thread's rows (in the order of time), DROPPED where it changes nothing. `known`: before the first. `missing` may be
 * NULL; of a state that began before the rows it has INT64_MIN as `since`. A wake-up may change its place: see wake_when_it_had_left(). */
void states_decide(struct sched_row *rows, size_t count, uint8_t known, int64_t gil_start, int64_t gil_end, uint8_t *to, const struct missing *missing)
{
    uint8_t state = known;
    size_t since = NONE, woke = NONE; /* the rows that began this state, and that woke the thread while it had its core */
    for (size_t k = 0; k < count; k++) {
        const struct sched_row *row = rows + k;
        uint8_t next = DROPPED, was = states_turned_out(state, row->kind);
        if (was != state && woke != NONE && (state == GIL || state == BLOCKED)) {
            wake_when_it_had_left(rows, to, woke, since);
            state = RUNQ;
            was = states_turned_out(state, row->kind);
        }
        if (row->kind == WAKING && state == RUNQ && since != NONE && rows[since].kind == WAKING)
            was = UNSEEN; /* who is woken twice had run meanwhile */
        if (missing) {
            missing->what[k] = was == state ? 0 : not_reported(state, row->kind);
            missing->since[k] = since == NONE ? INT64_MIN : rows[since].ts;
        }
        if (was != state && since != NONE)
            to[since] = was;
        switch (row->kind) {
        case IN: /* it was given a core */
            next = ON_CPU;
            break;
        case EXEC: /* whoever becomes another program runs */
            next = ON_CPU;
            break;
        case OUT: /* it lost its core: to another thread, or because it waits */
            next = runnable(row) ? RUNQ : waits_for(row, gil_start, gil_end);
            break;
        case WAKING: /* what it waited for has come, now it waits for a core. One that has a core is not woken: it was about to leave it */
            next = state == ON_CPU ? DROPPED : RUNQ;
            woke = state == ON_CPU ? k : NONE;
            break;
        case FORK: /* a new thread begins by waiting for a core */
            next = RUNQ;
            break;
        case EXIT: /* its time ends */
            next = GONE;
            break;
        case SNAPSHOT: /* as it was when recording began; where events have given the state they are newer */
            next = state == UNKNOWN ? snapshot(row, rows + count, gil_start, gil_end) : DROPPED;
            break;
        case LOST: /* what came is not known, so neither is the state, until the next event tells it */
            next = UNKNOWN;
            break;
        }
        /* After its exit a thread still leaves its core. exec gives a leader's id to another thread. */
        if (state == GONE && row->kind != FORK && row->kind != EXEC)
            next = DROPPED;
        to[k] = next;
        if (next == DROPPED)
            continue;
        state = next;
        since = k;
        if (row->kind != OUT && row->kind != WAKING)
            woke = NONE;
    }
}

/* The states after many threads' rows, which are grouped into runs: run k ends at ends[k] and has rows of the thread `thread[k]` in one
 * segment, in the order of time. A thread is in state known[thread] before its first run, and after its last one that is there.
 * `kind` LOST: scheduling is not known from here. `order`: which row of `all` each one is, as some change their places within a run. `what`, `since`: as struct
 * missing has them, `what` NULL: not asked for. False: no memory, or runs that cannot be. */
OFFERED bool rebuild_states(const struct switches *all, const int64_t *ends, const int64_t *thread, size_t runs, uint8_t *known,
                            const int64_t (*gil)[2], size_t threads, uint8_t *to, int64_t *order, uint8_t *what, int64_t *since)
{
    struct sched_row *rows = NULL;
    size_t capacity = 0, row = 0;
    for (size_t k = 0; k < runs; k++) {
        size_t end = (size_t)ends[k], count = end - row, number = (size_t)thread[k];
        if (end < row || end > all->rows || number >= threads || !room(&rows, &capacity, count, sizeof *rows))
            return free(rows), false;
        for (size_t at = 0; at < count; at++, row++)
            rows[at] = (struct sched_row){
                .ts = all->ts[row], .address = all->address[row], .row = row, .state = all->state[row], .syscall = all->syscall[row],
                .kind = (uint8_t)all->kind[row]
            };
        size_t begin = row - count;
        struct missing missing = {what + begin, since + begin};
        states_decide(rows, count, known[number], gil[number][0], gil[number][1], to + begin, what ? &missing : NULL);
        for (size_t at = begin; at < row; at++) {
            known[number] = to[at] == DROPPED ? known[number] : to[at];
            order[at] = (int64_t)rows[at - begin].row;
        }
    }
    free(rows);
    return true;
}
