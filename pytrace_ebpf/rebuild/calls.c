/* The stack of a thread's open calls: what a call is made of when it ends.
 *
 * wall_ns            from its entry to its end
 * the four parts     from the two stamps of timeline.c or, within one state, all of wall_ns in that state
 * self_...           the same less the sums of its children, which each child adds to its caller when it ends
 *                    (not known where the call or one of its children is not)
 *                    never below 0, which estimates alone could be
 * outermost          no call of the same function is open on the thread: such times may be added up, recursion is counted once.
 *                    What is open counts for the function that its entry named; all that are not known count as one
 * call_id            the thread's number, then its place in the thread's preorder: the count of calls entered before
 * call_line          where its caller is a function of Python: only those have lines
 * next_sibling_id    shows with the thread's next event: if that is an entry, it is the sibling's
 */
#include <stdlib.h>
#include <string.h>

#include "stack.h"
#include "engine.h"

void calls_stamp_at(const struct engine *engine, const struct timeline *line, int64_t ts, struct stamp *stamp)
{
    if (engine->by_cputime)
        curve_at(line, ts, stamp);
    else
        timeline_at(line, ts, stamp);
}

/* Before a thread goes on to another state: stamp what is not stamped yet. */
bool calls_stamp(struct engine *engine, struct thread *thread)
{
    if (!room(&thread->stamps, &thread->stamps_capacity, thread->depth, sizeof *thread->stamps))
        return engine->error = NO_MEMORY, false;
    for (; thread->stamped < thread->depth; thread->stamped++)
        calls_stamp_at(engine, &thread->line, thread->calls[thread->stamped].start_ns, &thread->stamps[thread->stamped]);
    if (!thread->last.stamped) {
        calls_stamp_at(engine, &thread->line, thread->last.ns, &thread->last.stamp);
        thread->last.stamped = true;
    }
    return true;
}

/* Bring a thread to the moment `ts`. */
bool calls_take(struct engine *engine, struct thread *thread, int64_t ts)
{
    if (LIKELY(thread->line.next > ts))
        return true;
    if (!calls_stamp(engine, thread))
        return false;
    if (engine->by_cputime)
        curve_take(engine, thread, ts);
    else
        timeline_take(engine, thread, ts);
    return true;
}

/* It has a core: the first one of all that was entered since it last had one. These are the innermost calls. */
void calls_got_core(struct thread *thread)
{
    int16_t cpu = thread->line.now.cpu;
    for (size_t k = thread->stamped; k-- && thread->stamps[k].first_cpu < 0;)
        thread->stamps[k].first_cpu = cpu;
    struct moment *moments[] = {&thread->mark, &thread->last, &thread->from};
    for (size_t k = 0; k < sizeof moments / sizeof *moments; k++)
        if (moments[k]->stamped && moments[k]->stamp.first_cpu < 0)
            moments[k]->stamp.first_cpu = cpu;
}

static void count_open(struct engine *engine, const struct thread *thread, uint32_t by)
{
    for (size_t k = 0; k < thread->depth; k++) {
        if (engine->wants_tree)
            engine->sites.site[thread->calls[k].site].open += by;
        if (thread->calls[k].flags & OF_LINE)
            engine->lines.at.site[thread->calls[k].site].open += by;
        uint32_t function = function_of(engine, thread->calls[k].func);
        engine->open_of_function[function] += by;
        engine->open_of_module[engine->module[function]] += by;
    }
}

/* The thread's events follow. */
void calls_begin(struct engine *engine, struct thread *thread)
{
    count_open(engine, thread, 1);
    thread->ended = NONE;
    if (thread->has_held && rows_slot(&engine->rows, &thread->ended)) {
        rows_put(&engine->rows, thread->ended, thread->held);
        thread->has_held = false;
    } else if (thread->has_held) {
        engine->error = NO_MEMORY;
    }
}

/* They are interrupted. */
void calls_pause(struct engine *engine, struct thread *thread)
{
    count_open(engine, thread, -1u);
    if (thread->ended == NONE)
        return;
    if (!thread->held && !(thread->held = malloc(sizeof *thread->held))) {
        engine->error = NO_MEMORY;
        return;
    }
    rows_get(&engine->rows, thread->ended, thread->held);
    engine->rows.filled[thread->ended] = 0;
    thread->has_held = true;
    thread->ended = NONE;
}

static bool stack_room(struct engine *engine, struct thread *thread)
{
    if (thread->depth < INT32_MAX && room(&thread->calls, &thread->capacity, thread->depth + 1, sizeof *thread->calls))
        return true;
    engine->error = NO_MEMORY;
    return false;
}

static bool node_of(struct engine *engine, struct thread *thread, int32_t func, uint8_t outermost, uint32_t *node)
{
    if (!thread->has_root) {
        if (!tree_root(&engine->tree, thread->number, &thread->root))
            return engine->error = NO_MEMORY, false;
        thread->has_root = true;
    }
    struct call *caller = thread->depth ? &thread->calls[thread->depth - 1] : NULL;
    uint32_t none = 0;
    if (tree_child(&engine->tree, caller ? caller->node : thread->root, func, outermost, caller ? &caller->newest : &none, node))
        return true;
    engine->error = NO_MEMORY;
    return false;
}

/* The site of a call of `func` by `caller`, NULL for none; what `site` is before is tried first. */
bool calls_site(struct engine *engine, const struct call *caller, int32_t line, int32_t func, uint32_t *site)
{
    int32_t calling = caller ? named(engine, caller->func) : -1;
    return sites_find(&engine->sites, calling, line, named(engine, func), site) || (engine->error = NO_MEMORY, false);
}

/* Sites for the calls that are open. False: no memory. */
bool calls_place(struct engine *engine, struct thread *thread)
{
    for (size_t k = 0; k < thread->depth; k++)
        if (!calls_site(engine, k ? &thread->calls[k - 1] : NULL, thread->calls[k].line, thread->calls[k].func, &thread->calls[k].site))
            return false;
    return true;
}

/* Nodes for the calls that are open. False: no memory. */
bool calls_plant(struct engine *engine, struct thread *thread)
{
    if (!thread->has_root && !tree_root(&engine->tree, thread->number, &thread->root))
        return false;
    thread->has_root = true;
    uint32_t node = thread->root, none = 0, *newest = &none;
    for (size_t k = 0; k < thread->depth; k++) {
        struct call *call = &thread->calls[k];
        uint32_t function = function_of(engine, call->func);
        call->outermost &= 3;
        *newest = 0;
        if (!tree_child(&engine->tree, node, function == engine->functions ? -1 : call->func, call->outermost, newest, &node))
            return false;
        call->node = node;
        newest = &call->newest;
    }
    *newest = 0;
    return true;
}

/* A call is entered. */
bool calls_enter(struct engine *engine, struct thread *thread, struct when when, int32_t func, int32_t line, int64_t frame, uint8_t flags)
{
    if (thread->depth == thread->capacity && !stack_room(engine, thread))
        return false;
    if (!LIKELY(when.ns <= thread->asked_ns))
        moments_answer(engine, thread, when.ns);
    uint32_t function = function_of(engine, func), module = engine->module[function];
    engine->met_unknown |= function == engine->functions && func >= 0;
    struct call *call = &thread->calls[thread->depth], *caller = thread->depth ? call - 1 : NULL;
    call_begins(call, thread, when.ns, func, line_of(engine, caller, line), frame, flags);
    call->outermost = (uint8_t)(!engine->open_of_function[function]++ + 2 * !engine->open_of_module[module]++);
    if (engine->wants_tree) {
        if (LIKELY(thread->phase == WITHIN) && !node_of(engine, thread, function == engine->functions ? -1 : func, call->outermost, &call->node))
            return false;
        struct node *node = call->node ? &engine->tree.node[call->node] : NULL;
        call->site = node ? node->site : 0;
        if (!calls_site(engine, caller, call->line, func, &call->site))
            return false;
        call->outermost_of_site = !engine->sites.site[call->site].open++;
        if (node)
            node->site = call->site;
    }
    if (engine->wants_rows && LIKELY(thread->phase == WITHIN)) {
        size_t slot;
        if (wants_row(engine, func, flags)) {
            if (!rows_slot(&engine->rows, &slot))
                return engine->error = NO_MEMORY, false;
            call->slot = (uint32_t)slot;
            call->piece = engine->piece;
        }
        if (thread->ended != NONE) {
            engine->rows.next_sibling_id[thread->ended] = (int64_t)thread->number << THREAD_BITS | call->sequence;
            thread->ended = NONE;
        }
    }
    if (engine->wants_edges && thread->phase == WITHIN && !edges_add(engine, thread, when.ns, func))
        return false;
    if (engine->wants_cores)
        cores_enter(engine, thread, call, caller, when.stamp);
    thread->depth++;
    bool older = !engine->by_cputime && when.ns < thread->line.since; /* than what was taken: all below it is stamped */
    if (!LIKELY(!when.stamp && !older)) {
        if (!room(&thread->stamps, &thread->stamps_capacity, thread->depth, sizeof *thread->stamps))
            return engine->error = NO_MEMORY, false;
        if (!when.stamp || thread->stamped + 1 < thread->depth)
            return calls_stamp(engine, thread);
        thread->stamps[thread->stamped++] = *when.stamp;
    }
    return true;
}

static void split_call(const struct engine *engine, const struct thread *thread, const struct call *call, struct when when, struct split *split)
{
    const struct timeline *line = &thread->line;
    int64_t wall = when.ns - call->start_ns;
    if (thread->stamped < thread->depth) {
        if (engine->by_cputime)
            curve_within(line, engine->has_queue, call->start_ns, when.ns, split);
        else
            timeline_within(line, call->start_ns, when.ns, split);
        return;
    }
    struct stamp now;
    const struct stamp *came = &thread->stamps[thread->depth - 1], *went = when.stamp;
    if (!went) {
        calls_stamp_at(engine, line, when.ns, &now);
        went = &now;
    }
    if (engine->by_cputime)
        curve_between(came, went, engine->has_queue, wall, split);
    else
        timeline_between(came, went, wall, split);
}

static bool in_loss(const struct engine *engine, int64_t start, int64_t end)
{
    size_t low = 0, high = engine->loss_count; /* the first that ended at or after `start` */
    if (!high || engine->losses[high - 1].end < start)
        return false;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (engine->losses[middle].end < start)
            low = middle + 1;
        else
            high = middle;
    }
    return engine->losses[low].start <= end;
}

static int32_t status_of(uint8_t flags)
{
    static const struct { uint8_t flag; int32_t status; } order[] = {/* places in schema.STATUSES; where two hold the first is reported */
        {IN_LOSS, 5}, {REPAIRED, 4}, {UNWOUND, 3}, {OPEN_AT_START, 1}, {OPEN_AT_END, 2}
    };
    for (size_t k = 0; k < sizeof order / sizeof *order; k++)
        if (flags & order[k].flag)
            return order[k].status;
    return 0;
}

static bool make_row(struct engine *engine, struct thread *thread, struct call *call, struct when when, const struct end *end, const struct ended *ended)
{
    struct rows *rows = &engine->rows;
    size_t slot = call->slot;
    uint8_t flags = call->flags | end->flags;
    if (!wants_row(engine, ended->func, flags)) {
        thread->ended = NONE;
        return true;
    }
    if (call->piece != engine->piece && !rows_slot(rows, &slot))
        return engine->error = NO_MEMORY, false;
    if (engine->loss_count && in_loss(engine, call->start_ns, when.ns))
        flags |= IN_LOSS;
    const struct split *split = &ended->split;
    int64_t base = (int64_t)thread->number << THREAD_BITS;
    bool part_of_many = flags & (RESUMED | YIELDED | REPAIRED);
    struct row row = {
        .call_id = base | call->sequence,
        .parent_id = thread->depth > 1 ? base | thread->calls[thread->depth - 2].sequence : -1,
        .last_descendant_id = base | (thread->sequence - 1),
        .next_sibling_id = -1,
        .depth = (int32_t)(thread->depth - 1),
        .layer = engine->layer[function_of(engine, ended->func)],
        .pid = (int32_t)(thread->key >> 32),
        .tid = (int32_t)thread->key,
        .func_id = ended->func,
        .start_ns = call->start_ns,
        .end_ns = when.ns,
        .wall_ns = ended->wall,
        .self_wall_ns = ended->wall - call->children_wall,
#define STATE(number, name, known) .name##_ns = split->part[number], .self_##name##_ns = ended->self[number],
        STATES(STATE)
#undef STATE
        .throttled_ns = split->throttled,
        .first_cpu = split->first_cpu,
        .last_cpu = split->last_cpu,
        .migrations = split->migrations,
        .preemptions = split->preemptions,
        .waits = split->waits,
        .frame = !part_of_many ? 0 : call->frame ? call->frame : end->frame,
        .outermost = ended->outermost & 1,
        .flags = flags,
        .line = end->line,
        .call_line = call->line,
        .status = status_of(flags),
        .known = (uint8_t)(split->known | (ended->known_self & OF_TIMES) << 4),
        .node = engine->wants_tree ? (int32_t)call->node : 0,
    };
    rows_put(rows, slot, &row);
    thread->ended = slot;
    return true;
}

static bool add_to_tree(struct engine *engine, struct thread *thread, struct call *call, const struct ended *ended)
{
    struct tree *tree = &engine->tree;
    uint32_t none = 0;
    if (function_of(engine, ended->func) != function_of(engine, call->func) &&
        !tree_child(tree, tree->node[call->node].parent, ended->func, ended->outermost, &none, &call->node))
        return engine->error = NO_MEMORY, false;
    if (!LIKELY(!call->owed) && !charges_pay(engine, call))
        return engine->error = NO_MEMORY, false;
    if (!LIKELY(call->highest == call->level) && !charges_raise(engine, thread, call))
        return engine->error = NO_MEMORY, false;
    struct node *node = &tree->node[call->node];
    node->calls++;
    sums_add(&node->total, ended->wall, ended->split.part, ended->split.known);
    sums_add(&node->self, ended->wall - call->children_wall, ended->self, ended->known_self);
    if (thread->depth == 1) {
        tree->node[thread->root].calls++;
        sums_add(&tree->node[thread->root].total, ended->wall, ended->split.part, ended->split.known);
    }
    return true;
}

static bool add_to_site(struct engine *engine, struct thread *thread, struct call *call, const struct ended *ended)
{
    if (ended->func != call->func) { /* its end gave it a name */
        if (!calls_site(engine, thread->depth > 1 ? call - 1 : NULL, call->line, ended->func, &call->site))
            return false;
        call->outermost_of_site = !engine->sites.site[call->site].open;
    }
    struct site *site = &engine->sites.site[call->site];
    site->calls++;
    if (call->outermost_of_site)
        sums_add(&site->total, ended->wall, ended->split.part, ended->split.known);
    site->self_wall += ended->wall - call->children_wall;
    return true;
}

/* Which parts its caller does not know of itself for want of them. */
uint8_t calls_unknown(const struct split *split)
{
    uint8_t unknown = (uint8_t)(~split->known & OF_TIMES);
    return unknown && !(split->known & KNOWN_IN_PART) ? unknown | NOTHING_BELOW : unknown;
}

/* What it had by itself, of `split`. */
void calls_own(const struct call *call, struct ended *ended)
{
    uint8_t unknown_below = call->unknown_below | call->unknown_below >> 4;
    int64_t rest = ended->wall - call->children_wall;
    ended->known_self = ended->split.known & ~unknown_below & OF_TIMES;
    for (int part = 0; part < PARTS; part++) {
        ended->self[part] = ended->split.part[part] - call->children[part];
        ended->self[part] = ended->self[part] < 0 ? 0 : ended->self[part];
        rest -= ended->self[part];
    }
    bool whole = (ended->split.known & OF_TIMES) == OF_TIMES || ended->split.known & KNOWN_IN_PART;
    if (ended->known_self != OF_TIMES && whole && !(unknown_below & NOTHING_BELOW) && rest >= 0)
        ended->known_self |= KNOWN_IN_PART;
}

/* Of the innermost call, which ends. */
static void sum_up(struct engine *engine, const struct thread *thread, const struct call *call, struct when when, int32_t func, struct ended *ended)
{
    split_call(engine, thread, call, when, &ended->split);
    ended->wall = when.ns - call->start_ns;
    calls_own(call, ended);
    uint32_t function = function_of(engine, call->func);
    engine->open_of_function[function]--;
    engine->open_of_module[engine->module[function]]--;
    if (engine->wants_tree)
        engine->sites.site[call->site].open--;
    ended->func = call->func;
    ended->outermost = call->outermost;
    if (call->func < 0) {
        ended->func = func;
        function = function_of(engine, func);
        ended->outermost = (uint8_t)(!engine->open_of_function[function] + 2 * !engine->open_of_module[engine->module[function]]);
    }
}

/* The tree has only its end. */
static bool note_end(struct engine *engine, struct thread *thread, const struct call *call, struct when when, const struct ended *ended)
{
    if (!room(&thread->gone, &thread->gone_capacity, thread->goners + 1, sizeof *thread->gone))
        return engine->error = NO_MEMORY, false;
    struct gone *gone = &thread->gone[thread->goners++];
    *gone = (struct gone){
        .end_ns = when.ns, .children_wall = call->children_wall, .func = ended->func, .outermost = ended->outermost,
        .outermost_of_site = call->outermost_of_site, .unknown_below = call->unknown_below
    };
    memcpy(gone->children, call->children, sizeof gone->children);
    if (when.stamp)
        gone->went = *when.stamp;
    else
        calls_stamp_at(engine, &thread->line, when.ns, &gone->went);
    return true;
}

/* The innermost call ends. */
bool calls_leave(struct engine *engine, struct thread *thread, struct when when, const struct end *end)
{
    if (!thread->depth)
        return engine->error = STRANGE_STATE, false;
    struct call *call = &thread->calls[thread->depth - 1];
    if (!LIKELY(when.ns <= thread->asked_ns))
        moments_answer(engine, thread, when.ns);
    struct ended ended;
    sum_up(engine, thread, call, when, end->func, &ended);
    if (call->func < 0 && engine->moments.count)
        moments_name(engine, thread, call, ended.func);
    bool counts = thread->phase == WITHIN;
    if (call->flags & OF_LINE)
        lines_add(engine, thread, call, &ended);
    if (engine->wants_edges && counts && !edges_add(engine, thread, when.ns, ENDS))
        return false;
    if (engine->wants_rows && counts && !make_row(engine, thread, call, when, end, &ended))
        return false;
    if (engine->wants_tree && counts && !(add_to_tree(engine, thread, call, &ended) && add_to_site(engine, thread, call, &ended)))
        return false;
    bool was_open = call->sequence < thread->kept;
    if (!LIKELY(!was_open) && engine->wants_tree && counts && !note_end(engine, thread, call, when, &ended))
        return false;
    if (engine->wants_cores && !cores_leave(engine, thread, call, when.ns, &ended))
        return false;
    if (thread->depth > 1) {
        struct call *caller = call - 1;
        caller->children_wall += ended.wall;
        for (int part = 0; part < PARTS; part++)
            caller->children[part] += ended.split.part[part];
        caller->unknown_below |= (uint8_t)(calls_unknown(&ended.split) << (was_open ? 4 : 0));
    }
    thread->depth--;
    if (thread->stamped > thread->depth)
        thread->stamped = thread->depth;
    return true;
}
