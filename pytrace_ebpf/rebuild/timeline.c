/* Where the time between two moments of a thread went, to the nanosecond: on a core, run queue, GIL or blocked.
 *
 * A thread has running totals up to its last switch, and the state it has been in since. So at any later moment its totals are
 * those plus the time since, in that state: its stamp. The difference of two stamps is what happened between, and sums to its
 * length. Switches wait in a queue until the thread has an event at or after them, so the two never cross. A call within one
 * state needs no stamp: calls_stamp() is called before the state changes, and stamps what is open then.
 *
 * Where no wake-ups were recorded (source perf), or one was not reported, what follows a sleep is time off the core of unknown kind: of an
 * interval with any, only its time on a core is known. Where it was not reported that a thread got its core, only its waits are.
 *
 * Function events may arrive a segment late. The switches of the newest segment and of the one before are therefore kept in the
 * queue; the state at a moment before that is reported as unknown. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

/* The stamp of the moment `ts`, after all switches that were taken. */
void timeline_at(const struct timeline *line, int64_t ts, struct stamp *stamp)
{
    *stamp = line->now;
    if (ts < line->since)
        stamp->unknown = true;
    else if (stamp->state != GONE)
        stamp->spent[stamp->state] += ts - line->since;
    stamp->first_cpu = stamp->state == ON_CPU ? stamp->cpu : -1;
}

/* The totals up to a switch. */
static void count(struct timeline *line, const struct change *change)
{
    struct stamp *now = &line->now;
    if (now->state != GONE && change->ts > line->since)
        now->spent[states_turned_out(now->state, change->kind)] += change->ts - line->since; /* of a state that began in an earlier segment */
    if (change->kind == OUT) {
        now->preemptions += change->to == RUNQ || change->to == READY;
        now->waits += change->to != RUNQ && change->to != READY;
    }
    now->migrations += change->kind == IN && now->cpu >= 0 && now->cpu != change->cpu;
    now->slices += change->to == ON_CPU;
    now->throttled += change->throttled;
}

static bool has_core(const struct change *change)
{
    return (change->kind == IN || change->kind == OUT || change->to == ON_CPU) && change->cpu >= 0;
}

/* The state after it. */
static void go_on(struct timeline *line, const struct change *change)
{
    if (has_core(change))
        line->now.cpu = change->cpu;
    line->now.state = change->to;
    if (change->ts > line->since)
        line->since = change->ts;
}

static void take(struct engine *engine, struct thread *thread, const struct change *change)
{
    struct timeline *line = &thread->line;
    window_stamp(engine, thread, change->ts);
    if (!thread->mark.stamped && thread->mark.ns < change->ts) {
        timeline_at(line, thread->mark.ns, &thread->mark.stamp);
        thread->mark.stamped = true;
    }
    count(line, change);
    if (engine->wants_cores && has_core(change) && line->now.cpu >= 0 && line->now.cpu != change->cpu)
        cores_left(engine, thread);
    go_on(line, change);
    if (change->to == ON_CPU && line->now.cpu >= 0)
        calls_got_core(thread);
}

/* The stamp of the moment `ts`, whether the switches up to there have been taken or not. */
void timeline_foresee(const struct timeline *line, int64_t ts, struct stamp *stamp)
{
    struct timeline then = *line;
    for (size_t k = line->head; k < line->count && line->queue.change[k].ts <= ts; k++) {
        count(&then, &line->queue.change[k]);
        go_on(&then, &line->queue.change[k]);
    }
    timeline_at(&then, ts, stamp);
}

static void look_for_next(struct timeline *line)
{
    line->next = line->head < line->count ? line->queue.change[line->head].ts : NS_NEVER;
}

/* Take the switches up to the moment `ts`. What is open must have been stamped if there is one: see calls_take(). */
void timeline_take(struct engine *engine, struct thread *thread, int64_t ts)
{
    struct timeline *line = &thread->line;
    while (line->head < line->count && line->queue.change[line->head].ts <= ts)
        take(engine, thread, &line->queue.change[line->head++]);
    look_for_next(line);
}

/* Before a segment's switches are added: takes those that were in the queue before the last segment's came; no event so late is expected. */
void timeline_forget(struct engine *engine, struct thread *thread)
{
    struct timeline *line = &thread->line;
    while (line->head < line->old)
        take(engine, thread, &line->queue.change[line->head++]);
    look_for_next(line);
    size_t rest = line->count - line->head;
    if (line->head)
        memmove(line->queue.change, line->queue.change + line->head, rest * sizeof *line->queue.change);
    line->head = 0;
    line->count = line->old = rest;
}

/* Put a segment's rows, decided to lead to the states `to`, at the end of the queue. */
bool timeline_add(struct timeline *line, const struct sched_row *rows, size_t count, const uint8_t *to)
{
    if (!room(&line->queue.change, &line->capacity, line->count + count, sizeof *line->queue.change))
        return false;
    for (size_t k = 0; k < count; k++) {
        if (to[k] == DROPPED)
            continue;
        line->queue.change[line->count++] = (struct change){rows[k].ts, rows[k].kind == IN ? rows[k].address : 0, rows[k].cpu, rows[k].kind, to[k]};
        line->decided = to[k];
    }
    look_for_next(line);
    return true;
}

static void nothing_is_known(struct split *split)
{
    *split = (struct split){.first_cpu = -1, .last_cpu = -1};
}

static bool is_nowhere(uint8_t state)
{
    return state == UNKNOWN || state == GONE;
}

/* What is known of an interval with so much time in each state. Where a switch was not reported, none is counted. */
static uint8_t known_of(const int64_t spent[TIMED])
{
    bool off = spent[OFF] || spent[SLEPT] || spent[UNSEEN], ready = spent[READY] || spent[UNSEEN], partly = (off && !spent[OFF]) || ready;
    for (int part = 0; part < PARTS; part++)
        partly &= spent[part] >= 0; /* else the end of a wait showed that it had been none */
    return (ready ? 0 : HAS_ON_CPU | HAS_COUNTS) | (off ? 0 : HAS_WAITS) | (off || ready ? 0 : HAS_RUNQ) | (partly ? KNOWN_IN_PART : 0);
}

/* Of a call that began after the last switch that was taken, and ends before the next. */
void timeline_within(const struct timeline *line, int64_t start, int64_t end, struct split *split)
{
    nothing_is_known(split);
    uint8_t state = line->now.state;
    if (is_nowhere(state) || start < line->since)
        return;
    int64_t spent[TIMED] = {[ON_CPU] = 0};
    spent[state] = end - start;
    split->known = known_of(spent);
    memcpy(split->part, spent, sizeof split->part);
    if (state == ON_CPU)
        split->first_cpu = split->last_cpu = line->now.cpu;
}

/* Of what lies between two stamps, `wall` apart. */
void timeline_between(const struct stamp *came, const struct stamp *went, int64_t wall, struct split *split)
{
    nothing_is_known(split);
    int64_t sum = 0, spent[TIMED];
    for (int state = 0; state < TIMED; state++)
        sum += spent[state] = went->spent[state] - came->spent[state];
    bool nowhere = !wall && is_nowhere(came->state);
    if (came->unknown || went->unknown || spent[UNKNOWN] || sum != wall || nowhere)
        return; /* as is time after the thread's exit, which counts nowhere */
    split->known = known_of(spent);
    memcpy(split->part, spent, sizeof split->part);
    split->throttled = went->throttled - came->throttled;
    if (split->throttled > split->part[RUNQ]) /* the wait began before the interval */
        split->throttled = split->part[RUNQ];
    split->preemptions = (int32_t)(went->preemptions - came->preemptions);
    split->waits = (int32_t)(went->waits - came->waits);
    split->migrations = (int32_t)(went->migrations - came->migrations);
    if (split->known & HAS_COUNTS && (came->state == ON_CPU || went->slices != came->slices)) {
        split->first_cpu = came->first_cpu;
        split->last_cpu = went->cpu;
    }
}
