/* Time on a core between two moments of a thread where only its CPU time is known: an estimate.
 *
 * A thread's CPU time is a curve through its rows of `cputime`, straight between two of them and, with the slope of the nearest interval,
 * up to EDGE_NS beyond the first and the last. Further out nothing is known. What a call spent off the core is known as a whole,
 * of its parts only the time in the run queue, if that was recorded. A piece of the curve is what a state is to timeline.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

#define EDGE_NS 1000000000 /* rows are 10 to 50 ms apart, unless the sampler itself waits for a core */

/* A double as an integer, whatever it is: what does not fit is as far out as fits. */
static int64_t whole(double value)
{
    if (!(value > -9e18))
        return value < 0 ? INT64_MIN / 2 : 0;
    return value < 9e18 ? (int64_t)floor(value) : INT64_MAX / 2;
}

/* The stamp of the moment `ts`, on the piece of the curve at hand. */
void curve_at(const struct timeline *line, int64_t ts, struct stamp *stamp)
{
    *stamp = (struct stamp){.first_cpu = -1, .cpu = -1, .unknown = line->line.unknown};
    for (int k = 0; k < 2; k++) {
        int64_t value = line->line.base[k] + whole(line->line.slope[k] * (double)(ts - line->line.ts));
        stamp->spent[k] = value < 0 ? 0 : value; /* a thread's first row may be its birth */
    }
}

/* Go on to the piece of the curve that the moment `ts` lies on; as timeline_take(). */
void curve_take(const struct engine *engine, struct thread *thread, int64_t ts)
{
    struct timeline *line = &thread->line;
    while (line->head < line->count && line->queue.knot[line->head].ts <= ts) {
        const struct knot *knot = &line->queue.knot[line->head++];
        if (!thread->mark.stamped && thread->mark.ns < knot->ts) {
            curve_at(line, thread->mark.ns, &thread->mark.stamp);
            thread->mark.stamped = true;
        }
        window_stamp(engine, thread, knot->ts);
        line->line = *knot;
    }
    line->since = line->line.ts;
    line->next = line->head < line->count ? line->queue.knot[line->head].ts : NS_NEVER;
}

static int64_t between(int64_t value, int64_t least, int64_t most)
{
    return value > most ? most : value < least ? least : value;
}

static void parts(int64_t on_cpu, int64_t queued, bool has_queue, int64_t wall, struct split *split)
{
    split->part[ON_CPU] = between(on_cpu, 0, wall);
    split->part[RUNQ] = between(queued, 0, wall - split->part[ON_CPU]);
    split->known = has_queue ? HAS_ON_CPU | HAS_RUNQ : HAS_ON_CPU;
}

void curve_between(const struct stamp *came, const struct stamp *went, bool has_queue, int64_t wall, struct split *split)
{
    *split = (struct split){.first_cpu = -1, .last_cpu = -1};
    if (!came->unknown && !went->unknown)
        parts(went->spent[ON_CPU] - came->spent[ON_CPU], went->spent[RUNQ] - came->spent[RUNQ], has_queue, wall, split);
}

void curve_within(const struct timeline *line, bool has_queue, int64_t start, int64_t end, struct split *split)
{
    struct stamp came, went;
    curve_at(line, start, &came);
    curve_at(line, end, &went);
    curve_between(&came, &went, has_queue, end - start, split);
}

static void slope_of(const struct cputime *from, const struct cputime *to, double slope[2])
{
    int64_t length = to->ts - from->ts;
    for (int k = 0; k < 2; k++)
        slope[k] = (double)(to->value[k] - from->value[k]) / (double)(length > 1 ? length : 1);
}

/* Draw the curve anew from a segment's rows and those that follow it, in the order of time. Keeps the last one before
 * `end_ns` for the next segment: the curve through it is known only then. What is open must have been stamped. */
bool curve_draw(struct thread *thread, const struct cputime *rows, size_t count, int64_t end_ns)
{
    struct timeline *line = &thread->line;
    bool kept = line->cputime_ts >= 0;
    struct cputime before = {line->cputime_ts, {line->cputime[0], line->cputime[1]}};
    if (!room(&line->queue.knot, &line->capacity, count + 3, sizeof *line->queue.knot))
        return false;
    struct knot *knot = line->queue.knot;
    size_t made = 0;
    double slope[2] = {line->slope_before[0], line->slope_before[1]};
    bool has_slope = kept && line->has_slope;
    size_t total = count + kept;
    for (size_t k = 0; k < total; k++) {
        const struct cputime *here = kept && !k ? &before : rows + k - kept;
        double slope_here[2] = {slope[0], slope[1]};
        bool has_here = has_slope;
        if (k + 1 < total) {
            slope_of(here, rows + k + 1 - kept, slope_here);
            has_here = true;
        }
        if (here->ts < end_ns && (k || !kept)) { /* the newest one that the next segment needs, and the slope before it */
            line->cputime_ts = here->ts;
            memcpy(line->cputime, here->value, sizeof line->cputime);
            line->has_slope = has_slope;
            memcpy(line->slope_before, slope, sizeof slope);
        }
        if (!k && !kept) {
            struct knot first = {.ts = here->ts - EDGE_NS, .unknown = !has_here};
            for (int part = 0; part < 2 && has_here; part++) {
                first.slope[part] = slope_here[part];
                first.base[part] = here->value[part] - whole(slope_here[part] * EDGE_NS);
            }
            knot[made++] = first;
        }
        knot[made] = (struct knot){.ts = here->ts, .base = {here->value[0], here->value[1]}, .unknown = !has_here};
        if (has_here)
            memcpy(knot[made].slope, slope_here, sizeof slope_here);
        made++;
        memcpy(slope, slope_here, sizeof slope);
        has_slope = has_here;
    }
    if (total) {
        struct knot last = knot[made - 1];
        knot[made++] = (struct knot){.ts = last.ts + EDGE_NS, .base = {last.base[0], last.base[1]}, .unknown = true};
    }
    line->head = 0;
    line->count = line->old = made;
    line->line = kept ? knot[line->head++] : (struct knot){.unknown = true};
    line->since = line->line.ts;
    line->next = line->head < line->count ? knot[line->head].ts : NS_NEVER;
    return true;
}
