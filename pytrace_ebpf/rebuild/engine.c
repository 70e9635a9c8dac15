/* Threads, segments and losses: the order in which input is processed, and the exported functions.
 *
 * A segment's scheduling is taken first (rebuild_switches or rebuild_cputimes), then its events piece by piece (rebuild_segment,
 * rebuild_events with one batch after the other, and rebuild_take until nothing of it is left). A thread's events of one batch
 * are a run; where a loss of events ended within it, it falls into chunks. Between two pieces the rows made so far may be read. */
#include <stdlib.h>
#include <string.h>

#include "rebuild.h"


/* Make an array hold `wanted` elements; its address may change. */
bool room(void *array, size_t *capacity, size_t wanted, size_t size)
{
    if (wanted <= *capacity)
        return true;
    size_t more = *capacity < 8 ? 16 : *capacity * 2;
    if (more < wanted)
        more = wanted;
    void *old, *fresh;
    memcpy(&old, array, sizeof old);
    if (more > SIZE_MAX / size || !(fresh = realloc(old, more * size)))
        return false;
    memcpy(array, &fresh, sizeof fresh);
    *capacity = more;
    return true;
}

static bool failed(struct engine *engine, enum rebuild_error error)
{
    engine->error = error;
    return false;
}

/* --- threads --- */

static bool thread_slots(struct engine *engine)
{
    size_t slots = engine->thread_slots ? engine->thread_slots * 2 : 256;
    uint32_t *slot = calloc(slots, sizeof *slot);
    if (!slot)
        return failed(engine, NO_MEMORY);
    free(engine->thread_slot);
    engine->thread_slot = slot;
    engine->thread_slots = slots;
    for (uint32_t number = 0; number < engine->threads; number++) {
        size_t at = hash((uint64_t)engine->thread[number]->key) >> 20 & (slots - 1);
        while (slot[at])
            at = (at + 1) & (slots - 1);
        slot[at] = number + 1;
    }
    return true;
}

static const struct process *process_of(const struct engine *engine, int32_t pid)
{
    static const struct process unknown;
    for (size_t k = 0; k < engine->processes; k++)
        if (engine->process[k].pid == pid)
            return &engine->process[k];
    return &unknown;
}

static struct thread *new_thread(struct engine *engine, int64_t key)
{
    if (engine->threads >= (1u << 22) || !room(&engine->thread, &engine->thread_capacity, engine->threads + 1, sizeof *engine->thread))
        return NULL;
    struct thread *thread = calloc(1, sizeof *thread);
    if (!thread)
        return NULL;
    const struct process *process = process_of(engine, (int32_t)(key >> 32));
    thread->key = key;
    thread->number = (uint32_t)engine->threads;
    thread->begins = FIRST;
    thread->died_ns = -1;
    thread->ended = NONE;
    thread->drawn = engine->draws;
    thread->mark.ns = process->start_ns > engine->start_ns ? process->start_ns : engine->start_ns;
    thread->last = (struct moment){.ns = -1, .stamped = true, .stamp = {.unknown = true, .first_cpu = -1, .cpu = -1}};
    struct timeline *line = &thread->line;
    line->now.state = line->decided = UNKNOWN;
    line->now.cpu = line->now.first_cpu = -1;
    line->since = engine->start_ns;
    line->next = NS_NEVER;
    line->gil_start = process->gil_start;
    line->gil_end = process->gil_end;
    line->line.unknown = true;
    line->cputime_ts = -1;
    window_open(engine, thread);
    moments_open(engine, thread);
    cores_open(engine, thread);
    engine->thread[engine->threads++] = thread;
    return thread;
}

/* Its slot or, where it is new, that which it is to have. */
static size_t slot_of(const struct engine *engine, int64_t key)
{
    size_t at = hash((uint64_t)key) >> 20 & (engine->thread_slots - 1);
    while (engine->thread_slot[at] && engine->thread[engine->thread_slot[at] - 1]->key != key)
        at = (at + 1) & (engine->thread_slots - 1);
    return at;
}

/* The thread, NULL where it is new. */
struct thread *engine_known(const struct engine *engine, int64_t key)
{
    uint32_t place = engine->thread_slots ? engine->thread_slot[slot_of(engine, key)] : 0;
    return place ? engine->thread[place - 1] : NULL;
}

/* The thread, which may be new; NULL: no memory. */
struct thread *engine_thread(struct engine *engine, int32_t pid, int32_t tid)
{
    int64_t key = (int64_t)((uint64_t)(uint32_t)pid << 32 | (uint32_t)tid);
    if (engine->threads * 2 >= engine->thread_slots && !thread_slots(engine))
        return NULL;
    size_t at = slot_of(engine, key);
    if (engine->thread_slot[at])
        return engine->thread[engine->thread_slot[at] - 1];
    struct thread *thread = new_thread(engine, key);
    if (thread)
        engine->thread_slot[at] = thread->number + 1;
    else
        engine->error = NO_MEMORY;
    return thread;
}

/* --- scheduling of a segment --- */

static int by_time_and_row(const void *one, const void *other)
{
    const struct sched_row *a = one, *b = other;
    if (a->ts != b->ts)
        return a->ts < b->ts ? -1 : 1;
    return a->row < b->row ? -1 : a->row > b->row;
}

static void in_order(struct sched_row *rows, size_t count)
{
    for (size_t k = 1; k < count; k++)
        if (by_time_and_row(&rows[k - 1], &rows[k]) > 0) {
            qsort(rows, count, sizeof *rows, by_time_and_row);
            return;
        }
}

static bool is_blind(const struct engine *engine, int64_t ts)
{
    size_t low = 0, high = engine->blind_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (engine->blind[middle].end < ts)
            low = middle + 1;
        else
            high = middle;
    }
    return low < engine->blind_count && engine->blind[low].start <= ts;
}

/* Rows of one segment by thread: those of `thread[k]` are order[begin[k]] up to order[begin[k + 1]]. */
struct by_thread {
    struct thread **thread;
    size_t *begin, *order;
    size_t threads;
};

static void free_by_thread(struct by_thread *by)
{
    free(by->thread);
    free(by->begin);
    free(by->order);
}

/* The next segment's scheduling concerns the thread, even if it has no rows in it. */
bool engine_due(struct engine *engine, struct thread *thread)
{
    if (thread->due)
        return true;
    if (!room(&engine->due, &engine->due_capacity, engine->dues + 1, sizeof *engine->due))
        return failed(engine, NO_MEMORY);
    engine->due[engine->dues++] = thread;
    return thread->due = true;
}

/* The engine's own threads that are due or have rows in this segment. All others cost nothing. */
static bool sort_by_thread(struct engine *engine, const int32_t *pid, const int32_t *tid, size_t rows, struct by_thread *by)
{
    *by = (struct by_thread){.order = malloc(rows * sizeof *by->order + 1)};
    struct thread **of = malloc(rows * sizeof *of + 1), *thread = NULL;
    bool fine = of && by->order;
    for (size_t row = 0; fine && row < rows; row++) {
        if (!thread || (int32_t)(thread->key >> 32) != pid[row] || (int32_t)thread->key != tid[row])
            thread = engine_thread(engine, pid[row], tid[row]);
        fine = thread && (!is_own(engine, thread) || engine_due(engine, thread));
        if (fine && is_own(engine, thread))
            thread->rows++;
        of[row] = thread;
    }
    by->thread = engine->due;
    by->threads = engine->dues;
    engine->due = NULL;
    engine->dues = engine->due_capacity = 0;
    fine = fine && (by->begin = malloc((by->threads + 1) * sizeof *by->begin));
    size_t at = 0;
    for (size_t k = 0; fine && k < by->threads; k++) {
        by->begin[k] = at;
        at += by->thread[k]->rows;
        by->thread[k]->rows = by->begin[k];
        by->thread[k]->due = false;
    }
    if (fine)
        by->begin[by->threads] = at;
    for (size_t row = 0; fine && row < rows; row++)
        if (is_own(engine, of[row]))
            by->order[of[row]->rows++] = row;
    for (size_t k = 0; k < by->threads; k++)
        by->thread[k]->rows = 0;
    free(of);
    return fine || failed(engine, NO_MEMORY);
}

static bool switches_of(struct engine *engine, struct thread *thread, const struct switches *all, const size_t *order, size_t count, size_t lost_from)
{
    size_t lost = engine->blind_passed - lost_from, made = 0;
    if (!room(&engine->sched, &engine->sched_capacity, count + lost, sizeof *engine->sched) ||
        !room(&engine->to, &engine->to_capacity, count + lost, sizeof *engine->to))
        return failed(engine, NO_MEMORY);
    for (size_t k = lost_from; k < engine->blind_passed; k++) {
        int64_t start = engine->blind[k].start;
        engine->sched[made++] = (struct sched_row){.ts = start > engine->start_ns ? start : engine->start_ns, .kind = LOST, .cpu = -1};
    }
    for (size_t k = 0; k < count; k++) {
        size_t row = order[k];
        uint8_t kind = (uint8_t)all->kind[row];
        if (engine->blind_count && kind != EXIT && is_blind(engine, all->ts[row]))
            continue; /* a row from within a loss may have lost what follows it */
        engine->sched[made++] = (struct sched_row){
            .ts = all->ts[row], .address = all->address[row], .row = row + lost + 1, .state = all->state[row],
            .syscall = all->syscall[row], .cpu = all->cpu[row], .kind = kind
        };
    }
    in_order(engine->sched, made);
    thread->is_late |= made && engine->sched[0].ts < engine->tree_ns;
    states_decide(engine->sched, made, thread->line.decided, thread->line.gil_start, thread->line.gil_end, engine->to);
    return timeline_add(&thread->line, engine->sched, made, engine->to) || failed(engine, NO_MEMORY);
}

static bool take_switches(struct engine *engine, const struct switches *all, int64_t end_ns)
{
    for (size_t row = 0; row < all->rows; row++)
        if ((uint8_t)all->kind[row] >= SCHED_KINDS)
            return failed(engine, STRANGE_KIND);
    size_t lost_from = engine->blind_passed;
    while (engine->blind_passed < engine->blind_count && engine->blind[engine->blind_passed].start < end_ns)
        engine->blind_passed++;
    bool fine = true;
    for (size_t k = 0; fine && lost_from < engine->blind_passed && k < engine->threads; k++)
        fine = !is_own(engine, engine->thread[k]) || engine_due(engine, engine->thread[k]);
    struct by_thread by = {0};
    fine = fine && sort_by_thread(engine, all->pid, all->tid, all->rows, &by);
    for (size_t k = 0; fine && k < by.threads; k++) {
        struct thread *thread = by.thread[k];
        size_t count = by.begin[k + 1] - by.begin[k];
        if (thread->line.head < thread->line.old)
            fine = calls_stamp(engine, thread);
        timeline_forget(engine, thread);
        if (fine && (count || lost_from < engine->blind_passed))
            fine = switches_of(engine, thread, all, by.order + by.begin[k], count, lost_from);
        if (fine && thread->line.count)
            fine = engine_due(engine, thread);
    }
    free_by_thread(&by);
    return fine;
}

static int by_time(const void *one, const void *other)
{
    const struct cputime *a = one, *b = other;
    return a->ts < b->ts ? -1 : a->ts > b->ts;
}

/* Draw the curve of a thread for the segment from `start_ns` on. */
static bool draw(struct engine *engine, struct thread *thread, const struct cputime *rows, size_t count, int64_t start_ns, int64_t end_ns)
{
    thread->drawn = engine->draws;
    if (!calls_stamp(engine, thread))
        return false;
    curve_take(engine, thread, start_ns - 1);
    if (!thread->mark.stamped && thread->mark.ns < start_ns) {
        curve_at(&thread->line, thread->mark.ns, &thread->mark.stamp);
        thread->mark.stamped = true;
    }
    return curve_draw(thread, rows, count, end_ns) || failed(engine, NO_MEMORY);
}

/* A thread's curve is not drawn again for each segment in which it has no rows, but for the first and, once the thread is used
 * again, for the last of them: those between would change nothing. */
bool engine_catch_up(struct engine *engine, struct thread *thread)
{
    return thread->drawn == engine->draws || draw(engine, thread, NULL, 0, engine->drawn_from, INT64_MIN);
}

static bool take_cputimes(struct engine *engine, const struct cputimes *all, int64_t start_ns, int64_t end_ns)
{
    struct by_thread by = {0};
    struct cputime *rows = malloc(all->rows * sizeof *rows + 1);
    bool fine = rows ? sort_by_thread(engine, all->pid, all->tid, all->rows, &by) : failed(engine, NO_MEMORY);
    for (size_t k = 0; fine && k < by.threads; k++)
        fine = engine_catch_up(engine, by.thread[k]);
    engine->draws++;
    engine->drawn_from = start_ns;
    for (size_t k = 0; fine && k < by.threads; k++) {
        size_t count = by.begin[k + 1] - by.begin[k];
        for (size_t at = 0; at < count; at++) {
            size_t row = by.order[by.begin[k] + at];
            rows[at] = (struct cputime){all->ts[row], {all->on_cpu[row], all->runq_wait[row]}};
        }
        qsort(rows, count, sizeof *rows, by_time);
        fine = draw(engine, by.thread[k], rows, count, start_ns, end_ns) && (!count || engine_due(engine, by.thread[k]));
    }
    free_by_thread(&by);
    free(rows);
    return fine;
}

/* --- events of a segment --- */

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

static bool open_run(struct engine *engine)
{
    const struct events *events = &engine->events;
    size_t end = engine->at;
    int32_t pid = events->pid[end], tid = events->tid[end];
    while (end < events->rows && events->pid[end] == pid && events->tid[end] == tid)
        end++;
    engine->run_end = end;
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

/* --- exported functions --- */

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
    engine->only_pid = engine->only_tid = -1;
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
        engine->losses, engine->blind, engine->process, engine->layer, engine->module, engine->open_of_function,
        engine->open_of_module, engine->thread, engine->thread_slot, engine->steps, engine->older, engine->seen.slot,
        engine->sched, engine->to, engine->edges.edge, engine->due, engine
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

/* The scheduling of the segment that ends at end_ns. */
OFFERED bool rebuild_switches(struct engine *engine, const struct switches *switches, int64_t end_ns)
{
    return !engine->error && !engine->by_cputime && take_switches(engine, switches, end_ns);
}

/* The CPU time of the segment [start_ns, end_ns) and of the one that follows. `has_queue`: runq_wait_ns is known. */
OFFERED bool rebuild_cputimes(struct engine *engine, const struct cputimes *cputimes, bool has_queue, int64_t start_ns, int64_t end_ns)
{
    engine->has_queue &= has_queue;
    return !engine->error && engine->by_cputime && take_cputimes(engine, cputimes, start_ns, end_ns);
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
    for (size_t row = 0; row < events->rows; row++)
        if ((uint8_t)events->kind[row] >= CALL_KINDS)
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
        while (engine->at < end)
            if (!take_row(engine, engine->current, engine->at++))
                return false;
        if (engine->at == engine->chunk_end)
            close_chunk(engine);
    }
    return true;
}

static void new_piece(struct engine *engine)
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

/* Forget the rows of the last piece but one that made any, and take up to `most` further events. Returns how many are left: where `starved`, they are to be
 * given again with those that follow. -1: see rebuild_error(). */
OFFERED int64_t rebuild_take(struct engine *engine, size_t most, bool *starved)
{
    if (engine->error)
        return -1;
    engine->starved = false;
    new_piece(engine);
    if (engine->current)
        calls_begin(engine, engine->current);
    bool fine = !engine->error && take_some(engine, most);
    if (engine->current)
        calls_pause(engine, engine->current);
    rows_pack(&engine->rows);
    *starved = engine->starved;
    return fine && !engine->error ? (int64_t)(engine->events.rows - engine->at) : -1;
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
    new_piece(engine);
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

/* pid << 32 | tid by number; returns how many there are. */
OFFERED size_t rebuild_keys(const struct engine *engine, int64_t *keys, size_t most)
{
    for (size_t k = 0; k < engine->threads && k < most; k++)
        keys[k] = engine->thread[k]->key;
    return engine->threads;
}
