/* A segment's scheduling, handed out to the threads' timelines (timeline.c), or its CPU times to their curves (curve.c).
 *
 * Only threads that have rows in the segment, or still something to do from the one before, are looked at. */
#include <stdlib.h>

#include "engine.h"

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

/* The last state of the thread in the segment up to `end_ns`, of which only a later segment shows what it was. */
static void estimate_cost(struct engine *engine, const struct thread *thread, size_t rows, int64_t end_ns)
{
    while (rows && engine->to[rows - 1] == DROPPED)
        rows--;
    if (!rows)
        return;
    int64_t ts = engine->sched[rows - 1].ts;
    size_t low = 0, high = engine->unseen_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct unseen *at = &engine->unseen[middle];
        if (at->key < thread->key || (at->key == thread->key && at->start < ts))
            low = middle + 1;
        else
            high = middle;
    }
    for (const struct unseen *at = engine->unseen + low; low < engine->unseen_count && at->key == thread->key && at->start == ts; low++, at++)
        if (at->end >= end_ns)
            engine->to[rows - 1] = states_turned_out(engine->to[rows - 1], (uint8_t)at->next);
}

static bool switches_of(struct engine *engine, struct thread *thread, const struct switches *all, const size_t *order, size_t count, size_t lost_from, int64_t end_ns)
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
    states_decide(engine->sched, made, thread->line.decided, thread->line.gil_start, thread->line.gil_end, engine->to, NULL);
    estimate_cost(engine, thread, made, end_ns);
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
            fine = switches_of(engine, thread, all, by.order + by.begin[k], count, lost_from, end_ns);
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
