/* What most events are: a call begins, or ends, while its thread stays in one state.
 *
 * Such a stretch does here in a quarter of the time what events.c, activations.c and calls.c would do with it: what else could come
 * between two events is ruled out for many of them at once, and a call that makes none, whose events follow each other, is not
 * even put on the stack. What is not plain ends the stretch and is left to those three: the first and the outermost calls of a thread,
 * the ends of calls that began before the stretch, what has no name or no frame, calls that have rows, and all where more is asked for than sums,
 * edges, cores and rows of some functions. */
#include "activations.h"
#include "stack.h"
#include "engine.h"

enum { IS_STRANGE, BEGINS, CLOSES, PASSES };
static const uint8_t does[CALL_KINDS] = {
    [ENTRY] = BEGINS, [RESUME] = BEGINS, [RETURN] = CLOSES, [YIELD] = CLOSES, [UNWIND] = CLOSES, [LINE] = PASSES, [STANDS] = PASSES
};

struct stretch {
    struct engine *engine;
    struct thread *thread;
    struct events events;
    struct activations open;
    struct call *innermost, *before; /* before: what was innermost when the stretch began */
    struct call *room;               /* for the last one that there is room for */
    int64_t ns, end_ns;              /* of the last event; and when the stretch ends at the latest */
    uint8_t state;
    int32_t cpu;       /* for cores.c: the core that all of it is on; -1 none */
    struct piece busy; /* and the piece of its process's curve that was asked for last */
    bool wants_tree, wants_cores;
    struct edge *edge; /* where the next one goes; NULL where none are wanted */
};

static bool is_plain(const struct engine *engine, const struct thread *thread)
{
    bool makes_rows = engine->wants_rows && (!engine->row_of || thread->ended != NONE); /* or what comes may be the next sibling of one */
    return !engine->by_cputime && !makes_rows && !engine->wants_lines &&
           thread->phase == WITHIN && thread->line.now.state <= BLOCKED && thread->depth && thread->open.count;
}

static inline int64_t later(int64_t one, int64_t other)
{
    return one > other ? one : other;
}

static inline struct stretch stretch_of(struct engine *engine, struct thread *thread)
{
    int64_t end = thread->edge < thread->line.next ? thread->edge : thread->line.next;
    struct call *innermost = &thread->calls[thread->depth - 1];
    size_t calls = thread->capacity - thread->depth, frames = thread->open.capacity - thread->open.count;
    return (struct stretch){
        .engine = engine, .thread = thread, .events = engine->events, .open = thread->open, .innermost = innermost, .before = innermost,
        .room = innermost + (calls < frames ? calls : frames),
        .ns = later(later(thread->last.ns, thread->line.since), engine->tree_ns),
        .end_ns = thread->asked_ns < end ? thread->asked_ns + 1 : end, .state = thread->line.now.state,
        .cpu = engine->wants_cores && thread->line.now.state == ON_CPU ? thread->line.now.cpu : -1,
        .wants_tree = engine->wants_tree, .wants_cores = engine->wants_cores
    };
}

static inline void note(struct stretch *now, int64_t ns, int32_t func)
{
    if (now->edge)
        *now->edge++ = (struct edge){ns, func, now->thread->number};
}

/* What a call has of where it lies. */
struct place {
    uint32_t node, site;
    bool outermost_of_site;
};

/* The place of a call of `func` from the innermost one. False: no memory. */
static inline bool find_place(struct stretch *now, int32_t func, int32_t line, uint8_t outermost, struct place *place)
{
    struct engine *engine = now->engine;
    struct tree *tree = &engine->tree;
    struct call *caller = now->innermost;
    uint32_t node, newest = caller->newest;
    if (!tree_again(tree, caller->node, func, outermost, &newest, &node) && !tree_child(tree, caller->node, func, outermost, &newest, &node))
        return false;
    caller->newest = newest;
    uint32_t site = tree->node[node].site;
    if (!sites_again(&engine->sites, named(engine, caller->func), line, func, site)) {
        if (!calls_site(engine, caller, line, func, &site))
            return false;
        tree->node[node].site = site;
    }
    *place = (struct place){node, site, !engine->sites.site[site].open};
    return true;
}

static inline void add(struct sums *sums, uint8_t state, int64_t wall, int64_t part)
{
    sums->wall += wall;
    sums->part[state] += part;
}

/* A call ends; `below`: what its children had of its time, and of its state. */
static inline void add_call(const struct stretch *now, struct call *caller, struct place place, int64_t wall, int64_t below, int64_t part_below)
{
    caller->children_wall += wall;
    caller->children[now->state] += wall;
    if (!now->wants_tree)
        return;
    struct node *node = &now->engine->tree.node[place.node];
    node->calls++;
    add(&node->total, now->state, wall, wall);
    add(&node->self, now->state, wall - below, later(wall - part_below, 0));
    struct site *site = &now->engine->sites.site[place.site];
    site->calls++;
    site->self_wall += wall - below;
    int64_t counts = place.outermost_of_site ? wall : 0; /* without a branch, which nobody could estimate_cost */
    add(&site->total, now->state, counts, counts);
}

/* What the process has had of the cores by `ns`, for a call that is the outermost of its function. */
static inline int64_t busy_at(struct stretch *now, uint8_t outermost, int64_t ns)
{
    if (!now->wants_cores || !(outermost & 1))
        return 0;
    if (ns < now->busy.from || ns >= now->busy.until)
        now->busy = cores_piece(now->thread, ns);
    return cores_upto(&now->busy, ns);
}

/* A call ends, which had `own` ns itself, and its process `busy` meanwhile. */
static inline void add_to_core(const struct stretch *now, int32_t func, uint8_t outermost, int64_t wall, int64_t own, int64_t busy)
{
    if (now->cpu < 0 || !cores_add(now->engine, func, now->cpu, later(own, 0)))
        return;
    if (outermost & 1)
        cores_meanwhile(&now->engine->cores, func, wall, busy);
}

/* Whether a call that ends so has a row for that. */
static inline bool suspends(const struct engine *engine, int32_t func, int8_t kind)
{
    return engine->rows_of_suspended && kind == YIELD && engine->row_of[function_of(engine, func)] != NO_ROWS;
}

/* The event `row` begins a call. Returns how many events were taken: two if the next one ends it, none if it is not plain. */
static inline size_t begin(struct stretch *now, size_t row, size_t end)
{
    struct engine *engine = now->engine;
    const struct events *events = &now->events;
    int64_t frame = events->frame[row], ts = events->ts[row];
    int32_t func = events->func[row];
    if (!frame || (uint32_t)func >= engine->functions || activations_find(&now->open, frame))
        return 0;
    if (engine->row_of && wants_row(engine, func, events->kind[row] == RESUME ? RESUMED : 0))
        return 0;
    bool is_leaf = row + 1 < end && events->frame[row + 1] == frame && does[(uint8_t)events->kind[row + 1]] == CLOSES;
    int64_t end_ns = is_leaf ? events->ts[row + 1] : ts;
    if (is_leaf && suspends(engine, func, events->kind[row + 1]))
        return 0;
    if (end_ns < ts || end_ns >= now->end_ns || (!is_leaf && now->innermost == now->room))
        return 0;
    uint32_t *of_function = &engine->open_of_function[func], *of_module = &engine->open_of_module[engine->module[func]];
    uint8_t outermost = (uint8_t)((*of_function ? 0 : 1) | (*of_module ? 0 : 2));
    int32_t line = engine->has_call_lines ? line_of(engine, now->innermost, events->line[row]) : -1;
    struct place place = {0};
    if (now->wants_tree && !find_place(now, func, line, outermost, &place))
        return 0;
    now->ns = end_ns;
    note(now, ts, func);
    if (is_leaf) {
        note(now, end_ns, ENDS);
        now->thread->sequence++;
        add_call(now, now->innermost, place, end_ns - ts, 0, 0);
        int64_t busy_ns = busy_at(now, outermost, ts);
        add_to_core(now, func, outermost, end_ns - ts, end_ns - ts, busy_at(now, outermost, end_ns) - busy_ns);
        return 2;
    }
    struct call *call = ++now->innermost;
    call_begins(call, now->thread, ts, func, line, frame, events->kind[row] == RESUME ? RESUMED : 0);
    call->outermost = outermost;
    call->node = place.node;
    call->site = place.site;
    call->outermost_of_site = place.outermost_of_site;
    call->busy_ns = busy_at(now, outermost, ts);
    ++*of_function;
    ++*of_module;
    if (now->wants_tree)
        engine->sites.site[place.site].open++;
    activations_enter(&now->open, frame);
    return 1;
}

/* The event `row` ends a call. Returns whether it is plain. */
static inline bool finish(struct stretch *now, size_t row)
{
    struct engine *engine = now->engine;
    struct call *call = now->innermost;
    if (suspends(engine, call->func, now->events.kind[row]))
        return false;
    if (call == now->before || now->open.frame[now->open.count - 1] != now->events.frame[row])
        return false;
    now->ns = now->events.ts[row];
    note(now, now->ns, ENDS);
    engine->open_of_function[call->func]--;
    engine->open_of_module[engine->module[call->func]]--;
    if (now->wants_tree)
        engine->sites.site[call->site].open--;
    struct place place = {call->node, call->site, call->outermost_of_site};
    int64_t wall = now->ns - call->start_ns;
    add_call(now, call - 1, place, wall, call->children_wall, call->children[now->state]);
    add_to_core(now, call->func, call->outermost, wall, wall - call->children[now->state], busy_at(now, call->outermost, now->ns) - call->busy_ns);
    activations_leave(&now->open);
    now->innermost--;
    return true;
}

/* Take the events from `row` on, up to `end`, as long as they are plain. Returns which one is not. */
size_t fast_path(struct engine *engine, struct thread *thread, size_t row, size_t end)
{
    struct edges *edges = &engine->edges;
    if (!is_plain(engine, thread) || (engine->wants_edges && !room(&edges->edge, &edges->capacity, edges->count + (end - row), sizeof *edges->edge)))
        return row;
    struct stretch now = stretch_of(engine, thread);
    now.edge = engine->wants_edges ? edges->edge + edges->count : NULL;
    size_t first = row, taken = 1;
    for (; row < end; row += taken) {
        if (now.events.ts[row] < now.ns || now.events.ts[row] >= now.end_ns)
            break;
        uint8_t what = does[(uint8_t)now.events.kind[row]];
        taken = what == BEGINS ? begin(&now, row, end) : what == CLOSES ? finish(&now, row) : what == PASSES;
        if (!taken)
            break;
        if (what == PASSES)
            now.ns = now.events.ts[row];
    }
    if (row > first) {
        thread->last.ns = now.ns;
        thread->last.stamped = false;
        thread->depth = (size_t)(now.innermost - thread->calls) + 1;
        thread->open.count = now.open.count;
        if (now.edge)
            edges->count = (size_t)(now.edge - edges->edge);
    }
    return row;
}
