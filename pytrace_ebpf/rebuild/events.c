/* A segment's events, handed to the stacks of open calls (calls.c) one after the other.
 *
 * A thread's events of one batch are a run; where a loss of events ended within it, it falls into chunks. The first chunk of a thread,
 * and that after a loss, is looked at ahead, for what was open before it (activations.c). */
#include "engine.h"

#define AT_ONCE 64 /* rows */

/* When the next loss comes, anything may have happened from its start or the thread's last event on: that moment is watched for. */
void engine_watch(const struct engine *engine, struct thread *thread)
{
    if (thread->begins != SETTLED)
        return;
    if (thread->passed >= engine->loss_count) {
        thread->mark.stamped = true;
        return;
    }
    int64_t start = engine->losses[thread->passed].start, ns = thread->last.ns > start ? thread->last.ns : start;
    if (ns == thread->last.ns) /* which may be long ago, and stamped */
        thread->mark = thread->last;
    else if (ns != thread->mark.ns)
        thread->mark = (struct moment){.ns = ns};
}

/* A loss ended. */
static void pass(struct thread *thread)
{
    if (thread->begins == SETTLED)
        thread->begins = AFTER_LOSS;
    thread->passed++;
}

static bool enters(struct engine *engine, struct thread *thread, struct when when, int32_t func, int32_t line, int64_t frame, uint8_t flags)
{
    return calls_enter(engine, thread, when, func, line, frame, flags) && (!engine->wants_lines || lines_begin(engine, thread, when, func, !flags));
}

static bool leaves(struct engine *engine, struct thread *thread, struct when when, const struct end *end)
{
    return (!engine->wants_lines || lines_end(engine, thread, when)) && calls_leave(engine, thread, when, end);
}

/* Where the rows of the thread that `row` is of end. Every engine looks at all rows, and at most of them only here: many at once, as far as that goes. */
static size_t end_of_run(const struct events *events, size_t row)
{
    const int32_t *pids = events->pid, *tids = events->tid, pid = pids[row], tid = tids[row];
    for (int32_t differ = 0; events->rows - row >= AT_ONCE; row += AT_ONCE) {
        for (size_t k = row; k < row + AT_ONCE; k++)
            differ |= (pids[k] ^ pid) | (tids[k] ^ tid);
        if (differ)
            break;
    }
    while (row < events->rows && pids[row] == pid && tids[row] == tid)
        row++;
    return row;
}

static bool open_run(struct engine *engine)
{
    const struct events *events = &engine->events;
    int32_t pid = events->pid[engine->at], tid = events->tid[engine->at];
    engine->run_end = end_of_run(events, engine->at);
    engine->in_chunk = false;
    engine->current = engine_thread(engine, pid, tid);
    if (!engine->current || (is_own(engine, engine->current) && !engine_catch_up(engine, engine->current)))
        return false;
    while (engine->current->passed < engine->passed_before)
        pass(engine->current);
    return true;
}

static struct when moment(const struct moment *moment)
{
    return (struct when){moment->ns, moment->stamped ? &moment->stamp : NULL};
}

/* Look at the rows of a chunk ahead: what each does, and the calls that turn out to be older than they. */
static bool look_ahead(struct engine *engine, struct thread *thread)
{
    const struct events *events = &engine->events;
    size_t rows = engine->chunk_end - engine->chunk_start;
    if (!room(&engine->steps, &engine->steps_capacity, rows, sizeof *engine->steps) ||
        !activations_look_ahead(&thread->open, thread->begins, &engine->seen))
        return failed(engine, NO_MEMORY);
    engine->older_count = 0;
    for (size_t k = 0; k < rows; k++) {
        size_t row = engine->chunk_start + k;
        struct step *step = &engine->steps[k];
        if (!activations_take(&thread->open, &engine->seen, events->kind[row], events->frame[row], step) ||
            !room(&engine->older, &engine->older_capacity, engine->older_count + 1, sizeof *engine->older))
            return failed(engine, NO_MEMORY);
        if (step->does == LEAVES_OLDER)
            engine->older[engine->older_count++] = (struct end){.func = events->func[row]};
    }
    thread->open.begins = SETTLED;
    thread->open.base = 0;
    return true;
}

/* The rows up to the end of the next loss, or of the run. The first of a thread, and of those after a loss, are looked at ahead. */
static bool open_chunk(struct engine *engine)
{
    struct thread *thread = engine->current;
    const struct events *events = &engine->events;
    size_t end = engine->at;
    if (thread->passed < engine->passed)
        while (end < engine->run_end && events->ts[end] <= engine->losses[thread->passed].end)
            end++;
    else
        end = engine->run_end;
    engine->chunk_start = engine->at;
    engine->chunk_end = end;
    engine->in_chunk = true;
    engine->ahead = thread->begins != SETTLED;
    engine->starved = engine->ahead && end == events->rows && !engine->last;
    if (end == engine->at || !engine->ahead || engine->starved)
        return true;
    /* A thread's rows cannot begin before the thread did. Rows that say what was open come first, and their
     * times mean nothing: a source may give them that of its own start. */
    size_t first = engine->at;
    while (first < end && thread->begins == FIRST && (events->kind[first] == OPEN || events->kind[first] == STANDS))
        first++;
    engine->open_end = first;
    if (first < end && events->ts[first] < thread->mark.ns) {
        int64_t ns = events->ts[first] > thread->last.ns ? events->ts[first] : thread->last.ns;
        thread->mark = (struct moment){.ns = ns};
    }
    if (!look_ahead(engine, thread))
        return false;
    if (thread->mark.ns >= thread->edge && !window_cross(engine, thread, thread->mark.ns, true))
        return false;
    thread->looks_back |= first > engine->at || engine->older_count || thread->begins == AFTER_LOSS;
    if (thread->phase == AFTER)
        return true;
    if (!thread->mark.stamped && !calls_take(engine, thread, thread->mark.ns))
        return false;
    const struct end unseen = {.func = -1, .line = -1, .flags = REPAIRED};
    for (uint32_t k = 0; k < thread->open.ended_before; k++)
        if (!leaves(engine, thread, moment(&thread->mark), &unseen))
            return false;
    for (size_t k = engine->older_count; k--;)
        if (!enters(engine, thread, moment(&thread->mark), engine->older[k].func, -1, 0, thread->begins == FIRST ? OPEN_AT_START : REPAIRED))
            return false;
    return true;
}

static const uint8_t flags_of[CALL_KINDS] = {[OPEN] = OPEN_AT_START, [UNWIND] = UNWOUND, [RESUME] = RESUMED, [YIELD] = YIELDED};

static bool take_row(struct engine *engine, struct thread *thread, size_t row)
{
    const struct events *events = &engine->events;
    int kind = events->kind[row];
    struct step step;
    if (engine->ahead)
        step = engine->steps[row - engine->chunk_start];
    else if (!activations_take(&thread->open, NULL, kind, events->frame[row], &step))
        return failed(engine, NO_MEMORY);
    int64_t ts = events->ts[row];
    thread->looks_back |= ts < thread->last.ns || ts < engine->tree_ns || step.does == ORPHAN;
    bool from_start = engine->ahead && row < engine->open_end;
    struct when when = {.ns = ts < thread->last.ns ? thread->last.ns : ts};
    if (from_start)
        when = moment(&thread->mark);
    if (when.ns >= thread->edge) {
        if (!window_cross(engine, thread, when.ns, step.does == ENTERS || (step.does == IS_AT && engine->wants_lines)))
            return false;
        if (thread->phase == AFTER)
            return true;
        if (from_start)
            when = moment(&thread->mark);
    }
    if (!when.stamp && !calls_take(engine, thread, when.ns))
        return false;
    const struct end unseen = {.func = -1, .line = -1, .flags = step.does == RESETS ? UNWOUND : REPAIRED};
    for (uint32_t k = 0; k < step.closes; k++)
        if (!leaves(engine, thread, when, &unseen))
            return false;
    struct end end = {.frame = events->frame[row], .func = events->func[row], .line = events->line[row], .flags = flags_of[kind]};
    bool fine = true;
    switch (step.does) {
    case IS_AT:
        fine = !engine->wants_lines || lines_come_to(engine, thread, when, end.line, kind);
        break;
    case ENTERS:
        fine = enters(engine, thread, when, end.func, engine->has_call_lines ? end.line : -1, end.frame, end.flags);
        break;
    case ORPHAN:
        fine = enters(engine, thread, moment(&thread->last), end.func, -1, 0, REPAIRED) && leaves(engine, thread, when, &end);
        break;
    case LEAVES:
    case LEAVES_OLDER:
        fine = leaves(engine, thread, when, &end);
        break;
    }
    if (!from_start || !when.stamp) {
        thread->last.ns = when.ns;
        thread->last.stamped = false;
    } else {
        thread->last = thread->mark;
    }
    return fine;
}

static void close_chunk(struct engine *engine)
{
    struct thread *thread = engine->current;
    if (engine->chunk_end > engine->chunk_start)
        thread->begins = SETTLED;
    engine->in_chunk = false;
    engine_watch(engine, thread);
    if (engine->chunk_end < engine->run_end)
        pass(thread);
}

/* The segment that ends at end_ns begins. */
OFFERED void rebuild_segment(struct engine *engine, int64_t end_ns)
{
    engine->end_ns = end_ns;
    engine->passed_before = engine->passed;
    while (engine->passed < engine->loss_count && engine->losses[engine->passed].end < end_ns)
        engine->passed++;
}

/* Some events of the segment; `last`: no more follow. They must stay where they are until rebuild_take has taken them. */
OFFERED bool rebuild_events(struct engine *engine, const struct events *events, bool last)
{
    if (engine->error)
        return false;
    if (!engine->module)
        return failed(engine, STRANGE_STATE);
    const uint8_t *kinds = (const uint8_t *)events->kind;
    uint8_t most = 0;
    for (size_t row = 0; row < events->rows; row++)
        most = kinds[row] > most ? kinds[row] : most;
    if (most >= CALL_KINDS)
        return failed(engine, STRANGE_KIND);
    engine->events = *events;
    engine->at = engine->run_end = 0;
    engine->current = NULL;
    engine->last = last;
    return true;
}

static bool take_some(struct engine *engine, size_t most)
{
    while (most && engine->at < engine->events.rows) {
        if (engine->at == engine->run_end) {
            if (engine->current)
                calls_pause(engine, engine->current);
            engine->current = NULL;
            if (engine->error || !open_run(engine))
                return false;
            if (engine->current->phase == AFTER) {
                engine->at = engine->run_end;
                engine->current = NULL;
                continue;
            }
            calls_begin(engine, engine->current);
        }
        if (!engine->in_chunk && !open_chunk(engine))
            return false;
        if (engine->starved)
            break;
        size_t end = engine->chunk_end - engine->at < most ? engine->chunk_end : engine->at + most;
        most -= end - engine->at;
        while (engine->at < end) {
            if (!engine->ahead)
                engine->at = fast_path(engine, engine->current, engine->at, end);
            if (engine->at < end && !take_row(engine, engine->current, engine->at++))
                return false;
        }
        if (engine->at == engine->chunk_end)
            close_chunk(engine);
    }
    return true;
}

/* Forget the rows of the last piece but one that made any, and take up to `most` further events. Returns how many are left: where `starved`, they are to be
 * given again with those that follow. -1: see rebuild_error(). */
OFFERED int64_t rebuild_take(struct engine *engine, size_t most, bool *starved)
{
    if (engine->error)
        return -1;
    engine->starved = false;
    engine_new_piece(engine);
    if (engine->current)
        calls_begin(engine, engine->current);
    bool fine = !engine->error && take_some(engine, most);
    if (engine->current)
        calls_pause(engine, engine->current);
    rows_pack(&engine->rows);
    *starved = engine->starved;
    return fine && !engine->error ? (int64_t)(engine->events.rows - engine->at) : -1;
}
