/* States of a trace whose beginning was dropped: what was derived with it goes on from the new beginning.
 *
 * There are two states of one moment: `fresh`, derived from what is left of the trace, and `before`, derived from more; and a later one,
 * `after`, that followed from `before`. The next events do to a thread what they did then if both states have the same calls open and
 * the same state of the thread; they cannot have asked for anything older unless they looked back. Then what `after` says of the thread
 * holds for `fresh` too, but for
 *
 * the numbers of calls         fewer, all by the same
 * the totals of its time       less, all by the same
 * calls that are open in all   began when `fresh` says, and of their children those from before count as there
 * calls that ended meanwhile   their sums had more time in them than is left; struct gone has what ended them
 *
 * Where any of that cannot be shown, nothing is changed, and the events between have to be taken. That goes for all of an engine with CPU time
 * only, whose curve depends on rows from before. No call's first core, which no sum has, is exact afterwards. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

/* A thread in the three states. `before` and `after` are parts of one derivation. */
struct thrice {
    struct thread *fresh, *before, *after;
    struct stamp was, is, then; /* in `before` and `fresh` at their moment, in `after` at its own */
    size_t stay;                /* so many of the calls open at first still are */
    bool line_moves, has_events, mark_is_later;
};

static bool is_new(const struct thread *thread)
{
    const struct timeline *line = &thread->line;
    return !thread->sequence && !thread->depth && thread->begins == FIRST && thread->last.ns < 0 && line->now.state == UNKNOWN && line->head == line->count;
}

/* What is left in a queue beyond the moment `ts`. */
static size_t beyond(const struct timeline *line, int64_t ts, const struct change **changes)
{
    size_t head = line->head;
    while (head < line->count && line->queue.change[head].ts <= ts)
        head++;
    *changes = line->queue.change + head;
    return line->count - head;
}

static bool same_queue(const struct timeline *one, const struct timeline *other, int64_t ts)
{
    const struct change *a, *b;
    size_t count = beyond(one, ts, &a);
    if (count != beyond(other, ts, &b))
        return false;
    for (size_t k = 0; k < count; k++)
        if (a[k].ts != b[k].ts || a[k].cpu != b[k].cpu || a[k].kind != b[k].kind || a[k].to != b[k].to || a[k].throttled != b[k].throttled)
            return false;
    return true;
}

static bool same_calls(const struct thread *one, const struct thread *other)
{
    bool same = one->depth == other->depth;
    for (size_t k = 0; same && k < one->depth; k++) {
        const struct call *a = &one->calls[k], *b = &other->calls[k];
        same = a->frame == b->frame && a->func == b->func && a->line == b->line && !((a->outermost ^ b->outermost) & 3);
    }
    return same;
}

/* Whether nothing happened to the thread meanwhile that its calls would show. */
static bool is_idle(const struct thread *before, const struct thread *after)
{
    return after->sequence == before->sequence && after->depth == before->depth && after->begins == before->begins &&
           after->last.ns == before->last.ns && !after->goners && !after->looks_back;
}

/* Whether in the `ns` between it was anything but in the state that it was in: what is after its exit counts nowhere. */
static bool went_on(const struct stamp *was, const struct stamp *then, int64_t ns)
{
    bool same = was->state == then->state && was->slices == then->slices && was->waits == then->waits && was->preemptions == then->preemptions;
    for (int state = 0; same && state < TIMED; state++)
        same = then->spent[state] == was->spent[state] + (state == was->state ? ns : 0);
    return !same;
}

/* Whether the next events do the same to both, as far as they do not look back. */
static bool same_rules(const struct thread *fresh, const struct thread *before)
{
    return before->begins == fresh->begins ? before->begins != AFTER_LOSS : before->begins == SETTLED && fresh->begins == FIRST && !fresh->depth;
}

static bool compare_lines(const struct engine *before, const struct engine *after, struct thrice *of)
{
    const struct timeline *was = &of->before->line, *is = &of->fresh->line, *then = &of->after->line;
    const struct change *left;
    if (is_new(of->before))
        of->was = (struct stamp){.spent[UNKNOWN] = before->end_ns - after->began_ns, .first_cpu = -1, .cpu = -1, .state = UNKNOWN};
    else
        timeline_foresee(was, before->end_ns, &of->was);
    timeline_foresee(is, before->end_ns, &of->is);
    timeline_foresee(then, after->end_ns, &of->then);
    of->line_moves = !is_new(of->after) && (went_on(&of->was, &of->then, after->end_ns - before->end_ns) || beyond(then, before->end_ns, &left));
    bool same = !of->was.unknown && !of->is.unknown && of->was.state == of->is.state && same_queue(was, is, before->end_ns);
    same = same && then->gil_start == is->gil_start && then->gil_end == is->gil_end && (!of->after->is_late || was->since == is->since);
    return same && (!of->line_moves || of->was.cpu == of->is.cpu);
}

static void shift(const struct thrice *of, struct stamp *stamp)
{
    for (int state = 0; state < TIMED; state++)
        stamp->spent[state] += of->is.spent[state] - of->was.spent[state];
    stamp->preemptions += of->is.preemptions - of->was.preemptions;
    stamp->waits += of->is.waits - of->was.waits;
    stamp->migrations += of->is.migrations - of->was.migrations;
    stamp->slices += of->is.slices - of->was.slices;
    stamp->throttled += of->is.throttled - of->was.throttled;
}

/* Whether a moment is the same in both, and what was spent up to it differs as at the moment of the states. */
static bool same_moment(const struct thrice *of, const struct moment *before, const struct moment *fresh)
{
    if (before->ns != fresh->ns || is_new(of->before))
        return before->ns == fresh->ns;
    struct stamp was = before->stamp, is = fresh->stamp;
    if (!before->stamped)
        timeline_foresee(&of->before->line, before->ns, &was);
    if (!fresh->stamped)
        timeline_foresee(&of->fresh->line, fresh->ns, &is);
    shift(of, &was);
    return was.unknown == is.unknown && was.state == is.state && !memcmp(was.spent, is.spent, sizeof is.spent) && was.preemptions == is.preemptions &&
           was.waits == is.waits && was.migrations == is.migrations && was.slices == is.slices && was.throttled == is.throttled;
}

/* What the next events look back at, where they do. */
static bool same_past(const struct thrice *of)
{
    const struct thread *before = of->before, *fresh = of->fresh;
    return before->begins == fresh->begins && same_moment(of, &before->last, &fresh->last) &&
           (before->begins == SETTLED || same_moment(of, &before->mark, &fresh->mark));
}

static bool compare_calls(struct thrice *of, bool is_listed, int64_t before_ns)
{
    const struct thread *before = of->before, *after = of->after;
    if (!same_calls(of->fresh, before) || !same_rules(of->fresh, before) || after->has_held || after->kept != before->sequence)
        return false;
    if (after->looks_back && !(is_listed && same_past(of)))
        return false;
    of->has_events = !is_idle(before, after);
    for (of->stay = 0; of->stay < before->depth && of->stay < after->depth; of->stay++)
        if (after->calls[of->stay].sequence != before->calls[of->stay].sequence)
            break;
    of->mark_is_later = !of->has_events && of->fresh->mark.ns > before_ns;
    if (of->mark_is_later && of->fresh->mark.ns != after->mark.ns)
        return false;
    return after->goners == before->depth - of->stay;
}

/* Find the thread of `after` in the others. False: it is not the same; no `fresh`: it is over. */
static bool find(struct engine *fresh, struct engine *before, struct engine *after, struct thread *thread, struct thrice *of)
{
    int32_t pid = (int32_t)(thread->key >> 32), tid = (int32_t)thread->key;
    *of = (struct thrice){.after = thread, .fresh = engine_known(fresh, thread->key), .before = engine_known(before, thread->key)};
    bool is_listed = of->fresh;
    if (!is_listed && is_new(thread))
        return true;
    if (!is_listed && of->before && !is_new(of->before)) {
        timeline_foresee(&of->before->line, before->end_ns, &of->was);
        timeline_foresee(&thread->line, after->end_ns, &of->then);
        return is_idle(of->before, thread) && !went_on(&of->was, &of->then, after->end_ns - before->end_ns);
    }
    of->fresh = engine_thread(fresh, pid, tid);
    of->before = engine_thread(before, pid, tid);
    if (!of->fresh || !of->before)
        return fresh->error = NO_MEMORY, false;
    return compare_lines(before, after, of) && compare_calls(of, is_listed, before->end_ns);
}

static bool same_losses(const struct engine *fresh, const struct engine *before, const struct engine *after)
{
    size_t passed = 0, blind = 0;
    while (passed < fresh->loss_count && fresh->losses[passed].end < after->end_ns)
        passed++;
    while (blind < fresh->blind_count && fresh->blind[blind].start < after->end_ns)
        blind++;
    return fresh->passed == before->passed && fresh->blind_passed == before->blind_passed && passed == after->passed && blind == after->blind_passed;
}

/* What was counted of children up to the later state, with those from before as `fresh` counts them. */
static void swap_children(const struct call *was, const struct call *is, int64_t *wall, int64_t part[PARTS])
{
    *wall += is->children_wall - was->children_wall;
    for (int k = 0; k < PARTS; k++)
        part[k] += is->children[k] - was->children[k];
}

/* Of a call that has ended: how it was summed, less what is taken off its end by another beginning. */
struct summed {
    struct ended ended;
    struct sums total, self;
    int64_t self_wall;
};

static void sum(const struct call *call, const struct stamp *came, const struct gone *gone, struct summed *out)
{
    struct ended *ended = &out->ended;
    *out = (struct summed){.ended.wall = gone->end_ns - call->start_ns};
    struct call whole = {.children_wall = gone->children_wall, .unknown_below = gone->unknown_below};
    memcpy(whole.children, gone->children, sizeof whole.children);
    timeline_between(came, &gone->went, ended->wall, &ended->split);
    calls_own(&whole, ended);
    out->self_wall = ended->wall - whole.children_wall;
    sums_add(&out->total, ended->wall, ended->split.part, ended->split.known);
    sums_add(&out->self, out->self_wall, ended->self, ended->known_self);
}

/* Put `now` in the place of `old` in a sum. */
static void put_right(struct sums *sums, const struct sums *old, const struct sums *now)
{
    struct sums less = {0};
    const int64_t *from = (const int64_t *)old;
    for (size_t k = 0; k < sizeof less / sizeof *from; k++)
        ((int64_t *)&less)[k] = -from[k];
    sums_merge(sums, &less);
    sums_merge(sums, now);
}

/* The sums that the call at `depth` is in. False: no memory. */
static bool put_right_of(struct engine *fresh, const struct thread *thread, size_t depth, const struct gone *gone, const struct summed *old, const struct summed *now)
{
    const struct call *call = &thread->calls[depth];
    struct tree *tree = &fresh->tree;
    uint32_t node = call->node, number = call->site, none = 0;
    int32_t entered = (uint32_t)call->func < fresh->functions ? call->func : -1, func = (uint32_t)gone->func < fresh->functions ? gone->func : -1;
    if (func != entered && !tree_child(tree, tree->node[node].parent, func, gone->outermost & 3, &none, &node))
        return false;
    put_right(&tree->node[node].total, &old->total, &now->total);
    put_right(&tree->node[node].self, &old->self, &now->self);
    if (!depth)
        put_right(&tree->node[thread->root].total, &old->total, &now->total);
    if (!calls_site(fresh, depth ? call - 1 : NULL, call->line, gone->func, &number))
        return false;
    struct site *site = &fresh->sites.site[number];
    if (gone->outermost_of_site)
        put_right(&site->total, &old->total, &now->total);
    site->self_wall += now->self_wall - old->self_wall;
    return true;
}

/* What another beginning changes in a caller by the child that ended in it. */
struct change_above {
    int64_t wall, part[PARTS];
    uint8_t unknown;
};

static void carry(struct change_above *above, int64_t *wall, int64_t part[PARTS])
{
    *wall += above->wall;
    for (int k = 0; k < PARTS; k++)
        part[k] += above->part[k];
}

static uint8_t unknown_before(const struct call *call, const struct change_above *above)
{
    return (uint8_t)(((call->unknown_below | call->unknown_below >> 4 | above->unknown) & OF_BELOW) << 4);
}

/* The call at `depth` ended: sum it up as `fresh` has it. */
static bool end_again(struct engine *fresh, struct thrice *of, size_t depth, struct gone *gone, struct change_above *above)
{
    const struct call *was = &of->before->calls[depth], *is = &of->fresh->calls[depth];
    struct summed old, now;
    sum(was, &of->before->stamps[depth], gone, &old);
    swap_children(was, is, &gone->children_wall, gone->children);
    carry(above, &gone->children_wall, gone->children);
    gone->unknown_below = (uint8_t)((gone->unknown_below & OF_BELOW) | unknown_before(is, above));
    shift(of, &gone->went);
    sum(is, &of->fresh->stamps[depth], gone, &now);
    above->wall = now.ended.wall - old.ended.wall;
    for (int k = 0; k < PARTS; k++)
        above->part[k] = now.ended.split.part[k] - old.ended.split.part[k];
    above->unknown = calls_unknown(&now.ended.split);
    return put_right_of(fresh, of->fresh, depth, gone, &old, &now);
}

static void swap(void *one, void *other, size_t size)
{
    uint8_t *a = one, *b = other;
    for (size_t k = 0; k < size; k++) {
        uint8_t byte = a[k];
        a[k] = b[k];
        b[k] = byte;
    }
}

#define SWAP(name) swap(&fresh->name, &after->name, sizeof fresh->name)

/* Let `fresh` have the thread as `after` has it, whose calls and times have become its own. */
static void hand_over(struct thrice *of)
{
    struct thread *fresh = of->fresh, *after = of->after;
    SWAP(calls), SWAP(stamps), SWAP(depth), SWAP(stamped), SWAP(capacity), SWAP(stamps_capacity), SWAP(open), SWAP(sequence);
    SWAP(kept), SWAP(gone), SWAP(goners), SWAP(gone_capacity), SWAP(looks_back), SWAP(is_late);
    if (of->line_moves)
        SWAP(line);
    if (of->has_events)
        SWAP(begins), SWAP(passed), SWAP(last);
    if (of->has_events || of->mark_is_later)
        SWAP(mark);
}

static bool go_on(struct engine *fresh, struct engine *before, struct engine *after, struct thrice *of)
{
    struct thread *was = of->before, *is = of->fresh, *then = of->after;
    if (!calls_stamp(before, was) || !calls_stamp(fresh, is) || !calls_stamp(after, then))
        return false;
    if (!is->mark.stamped && is->mark.ns <= before->end_ns) {
        timeline_foresee(&is->line, is->mark.ns, &is->mark.stamp);
        is->mark.stamped = true;
    }
    struct change_above above = {0};
    for (size_t depth = was->depth; depth-- > of->stay;)
        if (!end_again(fresh, of, depth, &then->gone[was->depth - 1 - depth], &above))
            return false;
    int64_t fewer = was->sequence - is->sequence;
    for (size_t k = 0; k < then->depth; k++) {
        struct call *call = &then->calls[k];
        if (k >= of->stay) {
            call->sequence -= fewer;
            shift(of, &then->stamps[k]);
            continue;
        }
        const struct call *here = &is->calls[k];
        struct change_above none = {0}, *below = k + 1 == of->stay ? &above : &none;
        swap_children(&was->calls[k], here, &call->children_wall, call->children);
        carry(below, &call->children_wall, call->children);
        call->unknown_below = (uint8_t)((call->unknown_below & OF_BELOW) | unknown_before(here, below));
        call->start_ns = here->start_ns;
        call->sequence = here->sequence;
        call->flags = here->flags;
        then->stamps[k] = is->stamps[k];
    }
    then->sequence -= fewer;
    then->kept = is->sequence;
    shift(of, &then->line.now);
    if (then->mark.stamped)
        shift(of, &then->mark.stamp);
    shift(of, &then->last.stamp);
    hand_over(of);
    return true;
}

/* Bring `fresh`, whose tree has just begun, from the state that `before` is in to that of `after`. Its tree then has what the sums of the
 * calls that ended meanwhile differ by; the caller adds these. `before` and `after` were loaded, and nothing else; they are of no use any more
 * but to load another state. False: it is as it was, or has an error. */
OFFERED bool rebuild_rebase(struct engine *fresh, struct engine *before, struct engine *after)
{
    if (fresh->error || before->error || after->error || fresh->by_cputime || before->by_cputime || after->by_cputime || !fresh->wants_tree ||
        fresh->shards != 1 || fresh->end_ns != before->end_ns || !same_losses(fresh, before, after))
        return false;
    size_t count = after->threads;
    struct thrice *all = calloc(count + 1, sizeof *all);
    bool fine = all || (fresh->error = NO_MEMORY, false);
    for (size_t k = 0; fine && k < count; k++)
        fine = find(fresh, before, after, after->thread[k], &all[k]);
    for (size_t k = 0; fine && k < fresh->threads; k++)
        fine = is_new(fresh->thread[k]) || engine_known(after, fresh->thread[k]->key);
    for (size_t k = 0; fine && k < count; k++)
        if (all[k].fresh && !go_on(fresh, before, after, &all[k]))
            fine = (fresh->error = NO_MEMORY, false);
    free(all);
    if (!fine)
        return false;
    fresh->passed = fresh->passed_before = after->passed;
    fresh->blind_passed = after->blind_passed;
    fresh->end_ns = after->end_ns;
    return true;
}
