/* A piece of the recording, as if it had begun at `from` and ended at `to`: of calls that cross an edge, what lies inside counts.
 *
 * Each thread crosses the edges by itself, with its first event beyond them, or at the end of the trace. At `from` its open calls begin
 * anew there, at `to` they end. Before and after, and on threads that are not asked for, calls come and go and are not counted.
 * Where its time went between the edges is known of every thread, whether it has calls or not: the two stamps of the edges. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

static int by_tid(const void *left, const void *right)
{
    int32_t one = *(const int32_t *)left, other = *(const int32_t *)right;
    return (one > other) - (one < other);
}

static bool is_asked(const struct engine *engine, const struct thread *thread)
{
    return is_own(engine, thread) && (engine->only_pid < 0 || engine->only_pid == (int32_t)(thread->key >> 32)) &&
           (!engine->only_tids || bsearch(&(int32_t){(int32_t)thread->key}, engine->only_tids, engine->only_count, sizeof(int32_t), by_tid));
}

/* Sets a new thread's part of the window. */
void window_open(const struct engine *engine, struct thread *thread)
{
    bool asked = is_asked(engine, thread);
    bool from_start = engine->window.start == INT64_MIN;
    thread->from = (struct moment){.ns = engine->window.start, .stamped = from_start};
    thread->to = (struct moment){.ns = engine->window.end};
    thread->phase = !asked ? AFTER : from_start ? WITHIN : BEFORE;
    thread->edge = !asked ? INT64_MIN : from_start ? engine->window.end : engine->window.start;
    thread->entered_before = 0;
}

/* Before the thread changes its state at the moment `ts`; and at the end of the trace. */
void window_stamp(const struct engine *engine, struct thread *thread, int64_t ts)
{
    struct moment *edges[] = {&thread->from, &thread->to};
    for (int k = 0; k < 2; k++)
        if (!edges[k]->stamped && edges[k]->ns < ts) {
            calls_stamp_at(engine, &thread->line, edges[k]->ns, &edges[k]->stamp);
            edges[k]->stamped = true;
        }
}

static bool begin(struct engine *engine, struct thread *thread)
{
    int64_t ns = engine->window.start > thread->last.ns ? engine->window.start : thread->last.ns;
    if (!calls_take(engine, thread, ns))
        return false;
    if (ns != thread->from.ns)
        thread->from = (struct moment){.ns = ns};
    if (thread->from.stamped && !room(&thread->stamps, &thread->stamps_capacity, thread->depth, sizeof *thread->stamps))
        return engine->error = NO_MEMORY, false;
    for (size_t k = 0; k < thread->depth; k++) {
        struct call *call = &thread->calls[k];
        call->start_ns = ns;
        call->flags |= OPEN_AT_START;
        call->children_wall = 0;
        for (int part = 0; part < PARTS; part++)
            call->children[part] = 0;
        call->unknown_below = 0;
        if (engine->wants_cores) {
            cores_forget(engine, call);
            cores_enter(engine, thread, call, NULL, thread->from.stamped && k + 1 == thread->depth ? &thread->from.stamp : NULL);
        }
        if (thread->from.stamped)
            thread->stamps[k] = thread->from.stamp;
        if (engine->wants_edges && !edges_add(engine, thread, ns, call->func))
            return false;
    }
    thread->stamped = thread->from.stamped ? thread->depth : 0;
    thread->last = thread->from;
    if (thread->mark.ns < ns)
        thread->mark = thread->from;
    thread->entered_before = thread->sequence - (int64_t)thread->depth;
    thread->phase = WITHIN;
    thread->edge = engine->window.end;
    return !engine->wants_tree || !thread->depth || calls_plant(engine, thread) || (engine->error = NO_MEMORY, false);
}

/* End what is open at `ns`, or with the thread's last event. */
bool window_end(struct engine *engine, struct thread *thread, int64_t ns)
{
    struct when when = {.ns = ns < thread->last.ns ? thread->last.ns : ns};
    if (!calls_take(engine, thread, when.ns))
        return false;
    if (thread->to.stamped && thread->to.ns == when.ns)
        when.stamp = &thread->to.stamp;
    const struct end open = {.func = -1, .line = -1, .flags = OPEN_AT_END};
    while (thread->depth)
        if (!calls_leave(engine, thread, when, &open))
            return false;
    if (thread->phase == BEFORE)
        thread->entered_before = thread->sequence;
    thread->phase = AFTER;
    thread->edge = INT64_MIN;
    return true;
}

/* Begin the window, if it has begun by the moment `ns` and no event of the thread said so. */
bool window_enter(struct engine *engine, struct thread *thread, int64_t ns)
{
    return thread->phase != BEFORE || ns <= engine->window.start || begin(engine, thread);
}

/* Cross the edges that lie before the moment `ns`; a call that ends at `from` is before it, what `enters` then is not. */
bool window_cross(struct engine *engine, struct thread *thread, int64_t ns, bool enters)
{
    if (thread->phase == BEFORE && (ns > engine->window.start || (ns == engine->window.start && enters)) && !begin(engine, thread))
        return false;
    return thread->phase != WITHIN || ns < engine->window.end || window_end(engine, thread, engine->window.end);
}

/* Only the window [from, to) counts from here on, and threads of `pid`, where that is not negative, and with ids among `tids`, of which there are
 * `count`, in their order; none: any. INT64_MIN and INT64_MAX: from the beginning, up to the end. After rebuild_load(), or before anything was taken. */
OFFERED void rebuild_window(struct engine *engine, int64_t from, int64_t to, int32_t pid, const int32_t *tids, size_t count)
{
    engine->window.start = from;
    engine->window.end = to;
    engine->only_pid = pid;
    free(engine->only_tids);
    engine->only_tids = NULL;
    engine->only_count = count;
    if (count && !(engine->only_tids = malloc(count * sizeof *tids)))
        engine->error = NO_MEMORY;
    else if (count)
        memcpy(engine->only_tids, tids, count * sizeof *tids);
    for (size_t k = 0; k < engine->threads; k++)
        window_open(engine, engine->thread[k]);
    if (!tree_begin_anew(engine))
        engine->error = NO_MEMORY;
}

/* Of `shards` engines that are given the same this is the one of number `shard`: it has the threads whose numbers are `shard` modulo
 * `shards`, and leaves out the others. Before anything is taken. */
OFFERED void rebuild_shard(struct engine *engine, uint32_t shard, uint32_t shards)
{
    engine->shards = shards ? shards : 1;
    engine->shard = shard;
    for (size_t k = 0; k < engine->threads; k++)
        window_open(engine, engine->thread[k]);
}

/* Where each thread's time went within the window, by its number, in the order of TIMED, then its calls; all -1 of a thread that
 * was not asked for. `unknown`: its times are not known. After rebuild_finish(); returns how many threads there are. */
OFFERED size_t rebuild_spent(const struct engine *engine, int64_t (*spent)[TIMED + 1], uint8_t *unknown, size_t most)
{
    for (size_t k = 0; k < engine->threads && k < most; k++) {
        const struct thread *thread = engine->thread[k];
        bool asked = is_asked(engine, thread);
        for (int state = 0; state < TIMED; state++)
            spent[k][state] = asked ? thread->to.stamp.spent[state] - thread->from.stamp.spent[state] : -1;
        spent[k][TIMED] = asked ? thread->sequence - thread->entered_before : -1;
        unknown[k] = !asked || thread->to.stamp.unknown || thread->from.stamp.unknown;
    }
    return engine->threads;
}

/* What state each thread is in after the switches so far (see states.c), and its core, -1 unknown; by its number. Returns how many
 * threads there are. */
OFFERED size_t rebuild_state_of_threads(const struct engine *engine, uint8_t *state, int16_t *cpu, size_t most)
{
    for (size_t k = 0; k < engine->threads && k < most; k++) {
        const struct timeline *line = &engine->thread[k]->line;
        bool queued = !engine->by_cputime && line->head < line->count;
        state[k] = line->decided;
        cpu[k] = queued ? line->queue.change[line->count - 1].cpu : line->now.cpu;
    }
    return engine->threads;
}
