/* Which events show that the GIL went from one thread to another: those next to another thread's, or to a given moment.
 *
 * A segment's events lie thread by thread. Each stretch of them in a piece that is of one thread and in the order of time is a run; the runs are merged
 * as in a merge sort, but what a run has before any other goes on is skipped at once, by a search that doubles its steps. So the time is
 * that of the turns between threads, not of the events, but for one look at each to find the runs. */
#include <stdlib.h>

#include "engine.h"

struct acts { /* some of a segment's events, in the order of the file */
    const int64_t *ts;
    const int32_t *pid, *tid;
    const int8_t *kind;
    size_t rows;
};

struct run { /* the rows [begin, end), of which all before `begin` are done */
    size_t begin, end;
    const int64_t *ts;
    uint8_t *mark; /* NULL of the moments */
};

struct runs { /* a heap: none begins before the one at half its place */
    struct run *run;
    size_t count, room;
    int64_t last_ns; /* of what was taken last */
};

static int64_t head(const struct run *run)
{
    return run->ts[run->begin];
}

static void sink(struct runs *all, size_t at)
{
    struct run moved = all->run[at];
    for (size_t below; (below = 2 * at + 1) < all->count; at = below) {
        if (below + 1 < all->count && head(&all->run[below + 1]) < head(&all->run[below]))
            below++;
        if (head(&moved) <= head(&all->run[below]))
            break;
        all->run[at] = all->run[below];
    }
    all->run[at] = moved;
}

static bool add(struct runs *all, struct run run)
{
    if (all->count == all->room) {
        size_t room = all->room ? 2 * all->room : 64;
        struct run *more = realloc(all->run, room * sizeof *more);
        if (!more)
            return false;
        all->run = more;
        all->room = room;
    }
    all->run[all->count++] = run;
    return true;
}

static bool passed(int64_t ts, int64_t ns, bool after)
{
    return ts < ns || (after && ts == ns);
}

/* The first row of a run that is at `ns` or later; or `after` it. */
static size_t search(const struct run *run, int64_t ns, bool after)
{
    size_t low = run->begin, step = 1;
    while (low + step < run->end && passed(run->ts[low + step], ns, after)) {
        low += step;
        step *= 2;
    }
    for (size_t high = low + step < run->end ? low + step : run->end; low < high;) {
        size_t middle = low + (high - low) / 2;
        if (passed(run->ts[middle], ns, after))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Take what the first run has up to where another goes on, and mark its ends; at one moment with that, those of either order. */
static void take(struct runs *all)
{
    struct run *run = all->run;
    uint8_t *mark = run->mark;
    size_t from = run->begin, before = run->end, upto = run->end;
    if (all->count > 1) {
        int64_t other = head(&all->run[all->count > 2 && head(&all->run[2]) < head(&all->run[1]) ? 2 : 1]);
        before = search(run, other, false);
        upto = search(run, other, true);
    }
    if (mark) {
        mark[from] = mark[upto - 1] = 1;
        if (before > from)
            mark[before - 1] = 1;
        if (before < upto)
            mark[before] = 1;
        if (head(run) == all->last_ns) { /* others were at this very moment, and these may come before them */
            size_t later = search(run, all->last_ns, true);
            mark[later - 1] = 1;
            if (later < upto)
                mark[later] = 1;
        }
    }
    all->last_ns = run->ts[upto - 1];
    run->begin = upto;
    if (upto == run->end)
        *run = all->run[--all->count];
    if (all->count)
        sink(all, 0);
}

/* Whether it shows that its thread has the GIL: not where it says what was open, or that nothing is. */
static bool shows(int8_t kind)
{
    return kind != OPEN && kind != STANDS && kind != RESET;
}

static bool add_runs(struct runs *all, const struct acts *acts, uint8_t *mark)
{
    const int64_t *ts = acts->ts;
    const int32_t *pid = acts->pid, *tid = acts->tid;
    for (size_t begin = 0, end; begin < acts->rows; begin = end) {
        end = begin + 1;
        if (!shows(acts->kind[begin]))
            continue;
        while (end < acts->rows && tid[end] == tid[begin] && pid[end] == pid[begin] && ts[end] >= ts[end - 1] && shows(acts->kind[end]))
            end++;
        if (!add(all, (struct run){begin, end, ts, mark}))
            return false;
    }
    return true;
}

/* Set `mark` of each of a segment's events, in `count` pieces one after the other, that shows who has the GIL and is next to another thread's, or to one of the
 * `moments`, which ascend. Sets some more: the ends of each thread's in a piece, and where they are out of order. false: there was not enough memory. */
OFFERED bool rebuild_gil_handoffs(const struct acts *pieces, size_t count, const int64_t *moments, size_t moment_count, uint8_t *mark)
{
    struct runs all = {.last_ns = INT64_MIN};
    bool fine = !moment_count || add(&all, (struct run){0, moment_count, moments, NULL});
    for (size_t k = 0; fine && k < count; mark += pieces[k++].rows)
        fine = add_runs(&all, &pieces[k], mark);
    for (size_t at = all.count / 2; at--;)
        sink(&all, at);
    while (fine && all.count)
        take(&all);
    free(all.run);
    return fine;
}
