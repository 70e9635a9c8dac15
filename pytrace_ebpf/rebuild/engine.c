/* The exported functions of an engine: it is opened, is given what the recording is about, and says in the end what it found.
 *
 * A segment's scheduling is taken first (rebuild_switches or rebuild_cputimes, scheduling.c), then its events piece by piece (rebuild_segment,
 * rebuild_events with one batch after the other, and rebuild_take until nothing of it is left, events.c). Between two pieces the rows made
 * so far may be read. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

OFFERED struct engine *rebuild_open(int64_t start_ns, bool by_cputime, bool rows, int64_t nodes)
{
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return NULL;
    engine->start_ns = engine->end_ns = engine->began_ns = engine->tree_ns = start_ns;
    engine->by_cputime = by_cputime;
    engine->has_queue = true;
    engine->wants_rows = rows;
    engine->wants_tree = nodes > 0;
    engine->tree.most = (size_t)(nodes > 0 ? nodes : 0);
    engine->piece = 1;
    engine->window.start = INT64_MIN;
    engine->window.end = NS_NEVER;
    engine->only_pid = -1;
    engine->shards = 1;
    return engine;
}

OFFERED void rebuild_close(struct engine *engine)
{
    if (!engine)
        return;
    for (size_t k = 0; k < engine->threads; k++) {
        struct thread *thread = engine->thread[k];
        activations_free(&thread->open);
        free(thread->calls);
        free(thread->stamps);
        free(thread->gone);
        free(thread->line.queue.change);
        free(thread->held);
        free(thread);
    }
    void *arrays[] = {
        engine->losses, engine->blind, engine->unseen, engine->process, engine->layer, engine->module, engine->open_of_function,
        engine->open_of_module, engine->thread, engine->numbers.slot, engine->steps, engine->older, engine->seen.slot,
        engine->sched, engine->to, engine->edges.edge, engine->due, engine->row_of, engine->only_tids, engine
    };
    rows_free(&engine->rows);
    rows_free(&engine->before);
    tree_free(&engine->tree);
    sites_free(&engine->sites);
    cores_free(&engine->cores);
    lines_free(&engine->lines);
    charges_free(&engine->charges);
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++)
        free(arrays[k]);
}

OFFERED int rebuild_error(const struct engine *engine)
{
    return engine->error;
}

static void *copy_of(const void *array, size_t count, size_t size)
{
    void *copy = malloc(count * size + 1);
    if (copy && count)
        memcpy(copy, array, count * size);
    return copy;
}

/* Once, before anything is taken. Windows are disjoint and in the order of time. */
OFFERED bool rebuild_losses(struct engine *engine, const struct window *calls, size_t call_count, const struct window *sched, size_t sched_count)
{
    engine->losses = copy_of(calls, call_count, sizeof *calls);
    engine->blind = copy_of(sched, sched_count, sizeof *sched);
    if (!engine->losses || !engine->blind)
        return failed(engine, NO_MEMORY);
    engine->loss_count = call_count;
    engine->blind_count = sched_count;
    return true;
}

/* Once, before anything is taken: by key and start. */
OFFERED bool rebuild_unseen(struct engine *engine, const struct unseen *unseen, size_t count)
{
    engine->unseen = copy_of(unseen, count, sizeof *unseen);
    engine->unseen_count = engine->unseen ? count : 0;
    return engine->unseen || failed(engine, NO_MEMORY);
}

/* Once, before anything is taken. Layers and modules by func_id, numbers from 0. */
OFFERED bool rebuild_functions(struct engine *engine, const int32_t *layer, const int32_t *module, uint32_t count, uint32_t modules)
{
    engine->layer = calloc(count + 1, sizeof *engine->layer);
    engine->module = calloc(count + 1, sizeof *engine->module);
    engine->open_of_function = calloc(count + 1, sizeof *engine->open_of_function);
    engine->open_of_module = calloc((size_t)modules + 1, sizeof *engine->open_of_module);
    if (!engine->layer || !engine->module || !engine->open_of_function || !engine->open_of_module)
        return failed(engine, NO_MEMORY);
    engine->functions = count;
    engine->modules = modules;
    for (uint32_t k = 0; k < count; k++) {
        engine->layer[k] = layer[k];
        engine->module[k] = module[k] >= 0 && (uint32_t)module[k] < modules ? module[k] : (int32_t)modules;
    }
    engine->module[count] = (int32_t)modules;
    return true;
}

/* The line of an entry is that of its caller which it was called from. */
OFFERED void rebuild_has_call_lines(struct engine *engine)
{
    engine->has_call_lines = true;
}

/* Once, before the threads. */
OFFERED bool rebuild_processes(struct engine *engine, const int32_t *pid, const int64_t *start_ns, const int64_t *gil_start, const int64_t *gil_end, size_t count)
{
    engine->process = calloc(count + 1, sizeof *engine->process);
    if (!engine->process)
        return failed(engine, NO_MEMORY);
    for (size_t k = 0; k < count; k++)
        engine->process[k] = (struct process){pid[k], start_ns[k], gil_start[k], gil_end[k]};
    engine->processes = count;
    return true;
}

/* Threads that are known, with when they began and ended (-1 not known). Their order is that of their call_ids. */
OFFERED bool rebuild_threads(struct engine *engine, const int32_t *pid, const int32_t *tid, const int64_t *start_ns, const int64_t *end_ns, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        struct thread *thread = engine_thread(engine, pid[k], tid[k]);
        if (!thread)
            return false;
        thread->mark.ns = start_ns[k] > thread->mark.ns ? start_ns[k] : thread->mark.ns;
        thread->died_ns = end_ns[k];
    }
    return true;
}

/* The rows of the last piece but one are forgotten. */
void engine_new_piece(struct engine *engine)
{
    if (engine->rows.count) {
        struct rows forgotten = engine->before;
        engine->before = engine->rows;
        engine->rows = forgotten;
        engine->rows.count = 0;
    }
    engine->edges.count = 0;
    engine->piece++;
}

static bool finish_thread(struct engine *engine, struct thread *thread, int64_t end_ns)
{
    struct timeline *line = &thread->line;
    int64_t end = thread->died_ns >= 0 ? thread->died_ns : end_ns;
    int64_t upto = engine->window.end < NS_NEVER ? engine->window.end : NS_NEVER - 1;
    if (thread->to.ns > end_ns)
        thread->to.ns = end_ns;
    if (thread->phase != AFTER && !engine->by_cputime) {
        if (!calls_take(engine, thread, upto))
            return false;
        end = line->now.state == GONE || end < line->since ? line->since : end;
    }
    end = end > upto ? upto : end;
    if (thread->phase != AFTER && !(window_cross(engine, thread, end, false) && (thread->phase == AFTER || window_end(engine, thread, end))))
        return false;
    if (!calls_take(engine, thread, thread->to.ns))
        return false;
    window_stamp(engine, thread, NS_NEVER);
    return true;
}

/* End what is still open when its thread, or at end_ns the recording, ended. Makes the last rows. */
OFFERED bool rebuild_finish(struct engine *engine, int64_t end_ns)
{
    engine_new_piece(engine);
    for (size_t k = 0; k < engine->threads && !engine->error; k++) {
        struct thread *thread = engine->thread[k];
        if (!is_own(engine, thread))
            continue;
        if (!engine_catch_up(engine, thread))
            return false;
        calls_begin(engine, thread);
        if (!engine->error && finish_thread(engine, thread, end_ns))
            thread->ended = NONE;
        calls_pause(engine, thread); /* one outside the window may still have open calls */
    }
    rows_pack(&engine->rows);
    return !engine->error;
}

OFFERED size_t rebuild_row_count(const struct engine *engine)
{
    return engine->rows.count;
}

/* Address of a column of the rows, by its place in rebuild_columns(). */
OFFERED const void *rebuild_column(const struct engine *engine, size_t place)
{
    const void *columns[] = {
#define X(type, name) engine->rows.name,
        ROW(X)
#undef X
    };
    return place < sizeof columns / sizeof *columns ? columns[place] : NULL;
}

/* Names and C types of the columns: "int64_t call_id,...". */
OFFERED const char *rebuild_columns(void)
{
#define X(type, name) #type " " #name ","
    return ROW(X);
#undef X
}

/* Whether there were calls of functions that rebuild_functions() was not given. */
OFFERED bool rebuild_met_unknown(const struct engine *engine)
{
    return engine->met_unknown;
}

OFFERED size_t rebuild_node_count(const struct engine *engine)
{
    return engine->tree.count;
}

/* The nodes of the tree; as many as rebuild_node_count() says, each of rebuild_node_size() bytes. */
OFFERED const struct node *rebuild_nodes(const struct engine *engine)
{
    return engine->tree.node;
}

OFFERED size_t rebuild_node_size(void)
{
    return sizeof(struct node);
}

/* call_ids of the calls that are open, and of those that have ended and whose rows are still to come; returns how many there are. */
OFFERED size_t rebuild_open_calls(const struct engine *engine, int64_t *ids, size_t most)
{
    size_t count = 0;
    for (size_t k = 0; k < engine->threads; k++) {
        const struct thread *thread = engine->thread[k];
        for (size_t at = 0; at < thread->depth; at++, count++)
            if (count < most)
                ids[count] = (int64_t)thread->number << THREAD_BITS | thread->calls[at].sequence;
        if (thread->has_held && count++ < most)
            ids[count - 1] = thread->held->call_id;
    }
    return count;
}

/* pid << 32 | tid by number; returns how many there are. */
OFFERED size_t rebuild_keys(const struct engine *engine, int64_t *keys, size_t most)
{
    for (size_t k = 0; k < engine->threads && k < most; k++)
        keys[k] = engine->thread[k]->key;
    return engine->threads;
}
