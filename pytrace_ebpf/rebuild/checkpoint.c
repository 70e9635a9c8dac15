/* The state of an engine between two segments as bytes, to go on from there at another time.
 *
 * What the trace itself says (losses, functions, processes, threads) is not in it: an engine that takes a checkpoint is given
 * these first. Nor are the rows made so far, a window, and the tree: that begins anew, with the open calls. The bytes are for
 * the same version on the same machine: the sizes of the structures come first. They are not trusted: lengths and indices are
 * checked, and bytes that do not pass are refused. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

struct bytes {
    uint8_t *at;
    size_t left, wanted;
    bool reads, fine;
};

/* Write a value, or read it; without room only count how much is wanted. */
static void value(struct bytes *bytes, void *what, size_t size)
{
    bytes->wanted += size;
    if (size > bytes->left) {
        bytes->left = 0;
        if (bytes->reads) {
            bytes->fine = false;
            memset(what, 0, size);
        }
        return;
    }
    if (size && bytes->reads)
        memcpy(what, bytes->at, size);
    else if (size)
        memcpy(bytes->at, what, size);
    bytes->at += size;
    bytes->left -= size;
}

/* An array of `count` elements, read into new memory where it is read. */
static void *array(struct bytes *bytes, void *what, size_t *count, size_t size)
{
    uint64_t length = *count;
    value(bytes, &length, sizeof length);
    if (bytes->reads) {
        if (length > bytes->left / size)
            bytes->fine = false;
        if (!bytes->fine)
            length = 0;
        *count = (size_t)length;
        if (!(what = malloc(length * size + 1))) {
            bytes->fine = false;
            *count = 0;
            return NULL;
        }
    }
    value(bytes, what, *count * size);
    return what;
}

/* Of a bool, not every byte is one. */
static bool is_bool(const bool *what)
{
    uint8_t byte;
    memcpy(&byte, what, 1);
    return byte <= 1;
}

static bool is_stamp(const struct stamp *stamp)
{
    return stamp->state <= GONE && is_bool(&stamp->unknown);
}

static bool is_moment(const struct moment *moment)
{
    return is_bool(&moment->stamped) && is_stamp(&moment->stamp);
}

/* Whether what was read is consistent. */
static bool holds(const struct engine *engine, const struct thread *thread)
{
    const struct timeline *line = &thread->line;
    bool fine = thread->begins <= AFTER_LOSS && thread->passed <= engine->loss_count && thread->stamped <= thread->depth;
    fine = fine && thread->depth < INT32_MAX && is_stamp(&line->now) && line->decided <= GONE;
    fine = fine && is_moment(&thread->mark) && is_moment(&thread->last) && is_bool(&line->line.unknown) && is_bool(&line->has_slope);
    for (size_t k = 0; fine && k < thread->stamped; k++)
        fine = is_stamp(&thread->stamps[k]);
    fine = fine && is_bool(&thread->looks_back) && is_bool(&thread->is_late);
    for (size_t k = 0; fine && k < thread->goners; k++)
        fine = is_stamp(&thread->gone[k].went);
    for (size_t k = 0; fine && k < line->count; k++)
        fine = engine->by_cputime ? is_bool(&line->queue.knot[k].unknown) : line->queue.change[k].to <= GONE;
    return fine;
}

static void timeline(struct bytes *bytes, const struct engine *engine, struct timeline *line)
{
    size_t size = engine->by_cputime ? sizeof *line->queue.knot : sizeof *line->queue.change;
    uint8_t *queue = (uint8_t *)line->queue.change;
    size_t count = line->count - line->head, old = line->old > line->head ? line->old - line->head : 0;
    uint64_t kept_old = old;
    value(bytes, &kept_old, sizeof kept_old);
    void *kept = array(bytes, bytes->reads ? NULL : queue ? queue + line->head * size : NULL, &count, size);
    struct timeline all = *line;
    value(bytes, &all, sizeof all);
    if (!bytes->reads)
        return;
    free(line->queue.change);
    *line = all;
    line->queue.change = kept;
    line->head = 0;
    line->count = line->capacity = count;
    line->old = kept_old <= count ? kept_old : count;
    if (!count)
        line->next = NS_NEVER;
    else
        line->next = engine->by_cputime ? line->queue.knot[0].ts : line->queue.change[0].ts;
}

/* Losses that were not known when the state was saved, of a trace that has grown since. */
static void look_out(const struct engine *engine, struct thread *thread)
{
    if (thread->begins == SETTLED && thread->passed < engine->loss_count) {
        int64_t start = engine->losses[thread->passed].start, ns = thread->last.ns > start ? thread->last.ns : start;
        if (ns != thread->mark.ns)
            engine_watch(engine, thread);
    }
}

/* What a call owes for memory, and what it had of cores that its thread has left: charges.c, cores.c. */
static void accounts(struct bytes *bytes, struct engine *engine, struct call *call)
{
    struct charges *charges = &engine->charges;
    struct cores *cores = &engine->cores;
    uint64_t owes = call->owed != 0, slices = 0;
    for (uint32_t k = bytes->reads ? 0 : call->slices; k; k = cores->slice[k].next)
        slices++;
    value(bytes, &slices, sizeof slices);
    if (!bytes->reads) {
        for (uint32_t k = call->slices; k; k = cores->slice[k].next)
            value(bytes, &cores->slice[k], sizeof *cores->slice);
        if (owes)
            value(bytes, &charges->owed[call->owed], sizeof *charges->owed);
        return;
    }
    call->piece = call->slices = call->owed = 0; /* places in what another engine had */
    struct slice slice;
    for (; bytes->fine && slices; slices--) {
        value(bytes, &slice, sizeof slice);
        bytes->fine = bytes->fine && cores_note(cores, call, slice.cpu, slice.ns);
    }
    struct charged sum, *owed = NULL;
    if (owes)
        value(bytes, &sum, sizeof sum);
    if (owes && bytes->fine && (owed = charges_owed(engine, call)))
        *owed = sum;
    bytes->fine = bytes->fine && (!owes || owed);
}

static bool thread(struct bytes *bytes, struct engine *engine, struct thread *thread)
{
    value(bytes, &thread->begins, sizeof thread->begins);
    value(bytes, &thread->passed, sizeof thread->passed);
    value(bytes, &thread->sequence, sizeof thread->sequence);
    value(bytes, &thread->mark, sizeof thread->mark);
    value(bytes, &thread->last, sizeof thread->last);
    size_t held = thread->has_held;
    void *row = array(bytes, thread->held, &held, sizeof *thread->held);
    if (bytes->reads) {
        free(thread->held);
        thread->held = row;
        thread->has_held = held == 1 && engine->wants_rows;
        bytes->fine = bytes->fine && held <= 1;
        if (!thread->has_held) { /* an empty array is no row */
            free(thread->held);
            thread->held = NULL;
        }
    }
    void *calls = array(bytes, thread->calls, &thread->depth, sizeof *thread->calls);
    void *stamps = array(bytes, thread->stamps, &thread->stamped, sizeof *thread->stamps);
    value(bytes, &thread->kept, sizeof thread->kept);
    value(bytes, &thread->looks_back, sizeof thread->looks_back);
    value(bytes, &thread->is_late, sizeof thread->is_late);
    void *gone = array(bytes, thread->gone, &thread->goners, sizeof *thread->gone);
    if (bytes->reads) {
        free(thread->calls);
        free(thread->stamps);
        free(thread->gone);
        thread->calls = calls;
        thread->stamps = stamps;
        thread->gone = gone;
        thread->capacity = thread->depth;
        thread->stamps_capacity = thread->stamped;
        thread->gone_capacity = thread->goners;
    }
    timeline(bytes, engine, &thread->line);
    value(bytes, &thread->level, sizeof thread->level);
    value(bytes, &thread->moved_ns, sizeof thread->moved_ns);
    value(bytes, &thread->moved_from, sizeof thread->moved_from);
    for (size_t k = 0; bytes->fine && k < thread->depth; k++)
        accounts(bytes, engine, &thread->calls[k]);
    if (!bytes->reads)
        return true;
    if (!bytes->fine || !holds(engine, thread))
        return false;
    look_out(engine, thread);
    activations_free(&thread->open);
    thread->open = (struct activations){0};
    for (size_t k = 0; k < thread->depth; k++) {
        struct call *call = &thread->calls[k];
        if (call->flags & OF_LINE ? !lines_place(engine, call) : !activations_push(&thread->open, call->frame))
            return false;
    }
    if (is_own(engine, thread) && (engine->by_cputime || thread->line.count) && !engine_due(engine, thread))
        return false;
    return !engine->wants_tree || (calls_place(engine, thread) && calls_plant(engine, thread));
}

static void pass_through(struct bytes *bytes, struct engine *engine)
{
    uint64_t sizes[] = {sizeof(struct thread), sizeof(struct call), sizeof(struct stamp), sizeof(struct row), sizeof(struct gone), sizeof(struct knot), engine->by_cputime};
    uint64_t found[sizeof sizes / sizeof *sizes];
    memcpy(found, sizes, sizeof found);
    value(bytes, found, sizeof found);
    uint64_t threads = 0, passed[] = {engine->passed, engine->blind_passed};
    value(bytes, passed, sizeof passed);
    uint8_t has_queue = engine->has_queue;
    value(bytes, &has_queue, sizeof has_queue);
    int64_t began_ns = engine->began_ns, end_ns = engine->end_ns;
    value(bytes, &began_ns, sizeof began_ns);
    value(bytes, &end_ns, sizeof end_ns);
    for (size_t k = 0; k < engine->threads; k++)
        threads += is_own(engine, engine->thread[k]);
    value(bytes, &threads, sizeof threads);
    bytes->fine = bytes->fine && !memcmp(found, sizes, sizeof found) && passed[0] <= engine->loss_count && passed[1] <= engine->blind_count;
    if (!bytes->fine)
        return;
    engine->has_queue = has_queue;
    engine->passed = engine->passed_before = (size_t)passed[0];
    engine->blind_passed = (size_t)passed[1];
    engine->began_ns = began_ns;
    engine->end_ns = end_ns;
    for (size_t k = 0; bytes->fine && threads; k++) {
        if (!bytes->reads && !is_own(engine, engine->thread[k]))
            continue;
        threads--;
        int64_t key = bytes->reads ? 0 : engine->thread[k]->key;
        uint64_t number = k;
        value(bytes, &key, sizeof key);
        value(bytes, &number, sizeof number);
        struct thread *here = bytes->fine ? engine_thread(engine, (int32_t)(key >> 32), (int32_t)key) : NULL;
        bytes->fine = here && thread(bytes, engine, here) && bytes->fine;
        /* Of a trace that has grown since, threads may have other numbers; a row that waits has that of its call_id. */
        bytes->fine = bytes->fine && (here->number == number || !here->has_held);
    }
}

/* Write the state between two segments, of the engine's own threads, to `at`, as far as there is room; returns how many bytes it takes. */
OFFERED size_t rebuild_save(struct engine *engine, uint8_t *at, size_t room_for)
{
    for (size_t k = 0; k < engine->threads; k++)
        if (is_own(engine, engine->thread[k]) && !engine_catch_up(engine, engine->thread[k]))
            return 0; /* which no engine loads */
    struct bytes bytes = {.at = at, .left = room_for, .fine = true};
    pass_through(&bytes, engine);
    return bytes.wanted;
}

/* Go on from a state that was saved, or from those of several engines, one after the other. False: it is none of an engine that was given the same. */
OFFERED bool rebuild_load(struct engine *engine, const uint8_t *at, size_t length)
{
    struct bytes bytes = {.at = (uint8_t *)at, .left = length, .reads = true, .fine = !engine->error && engine->module};
    while (bytes.fine && bytes.left)
        pass_through(&bytes, engine);
    if (!bytes.fine || !length)
        engine->error = STRANGE_STATE;
    return !engine->error;
}
