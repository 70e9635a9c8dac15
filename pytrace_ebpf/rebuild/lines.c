/* Lines: hits, and sums of the time at each, with and without what was called from there.
 *
 * While lines are asked for, the time of a call at a line is a call of its own: it begins where the line does, and ends with the next
 * line of the function or with the function. So it is split as a call is, its children are what the line called, and the
 * lines of a function together are its own time exactly. What a call does before it comes to a line is its function's first one's. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

static struct call *innermost(const struct thread *thread)
{
    return thread->depth ? &thread->calls[thread->depth - 1] : NULL;
}

static bool has_lines(const struct engine *engine, int32_t func)
{
    return func >= 0 && (uint32_t)func < engine->functions && engine->layer[func] == PYTHON;
}

static bool find(struct engine *engine, struct call *call)
{
    struct lines *lines = &engine->lines;
    if (!sites_find(&lines->at, call->func, call->line, -1, &call->site))
        return failed(engine, NO_MEMORY);
    size_t before = lines->capacity;
    if (!room(&lines->self, &lines->capacity, lines->at.count, sizeof *lines->self))
        return failed(engine, NO_MEMORY);
    memset(lines->self + before, 0, (lines->capacity - before) * sizeof *lines->self);
    return true;
}

/* The same of a call that goes on, whose number was another engine's; false also where it is none. */
bool lines_place(struct engine *engine, struct call *call)
{
    return engine->wants_lines && has_lines(engine, call->func) && find(engine, call);
}

static bool place(struct engine *engine, struct call *call, int32_t line)
{
    struct lines *lines = &engine->lines;
    call->line = line;
    if (!find(engine, call))
        return false;
    call->outermost_of_site = !lines->at.site[call->site].open++;
    return true;
}

static bool begin(struct engine *engine, struct thread *thread, struct when when, int32_t func, int32_t line, uint8_t flags)
{
    return calls_enter(engine, thread, when, func, -1, 0, flags) && place(engine, innermost(thread), line);
}

/* A call of `func` was entered. */
bool lines_begin(struct engine *engine, struct thread *thread, struct when when, int32_t func, bool entered)
{
    return !has_lines(engine, func) || begin(engine, thread, when, func, entered ? engine->lines.first_line[func] : -1, NOT_SEEN);
}

/* The innermost call is about to end. */
bool lines_end(struct engine *engine, struct thread *thread, struct when when)
{
    static const struct end none = {.func = -1, .line = -1};
    struct call *call = innermost(thread);
    return !call || !(call->flags & OF_LINE) || calls_leave(engine, thread, when, &none);
}

/* The innermost call is at a line. */
bool lines_come_to(struct engine *engine, struct thread *thread, struct when when, int32_t line, int kind)
{
    struct call *call = innermost(thread);
    if (!call || !(call->flags & OF_LINE))
        return true;
    engine->lines.lined[call->func] = 1;
    if (kind == STANDS && call->flags == NOT_SEEN && !call->children_wall) { /* it has been there since then */
        engine->lines.at.site[call->site].open--;
        return place(engine, call, line);
    }
    int32_t func = call->func;
    if (!lines_end(engine, thread, when) || !begin(engine, thread, when, func, line, OF_LINE))
        return false;
    engine->lines.at.site[innermost(thread)->site].calls += kind == LINE && thread->phase == WITHIN;
    return true;
}

/* The time of a call at a line has ended. */
void lines_add(struct engine *engine, const struct thread *thread, const struct call *call, const struct ended *ended)
{
    struct site *site = &engine->lines.at.site[call->site];
    site->open--;
    if (thread->phase != WITHIN)
        return;
    if (call->outermost_of_site)
        sums_add(&site->total, ended->wall, ended->split.part, ended->split.known);
    sums_add(&engine->lines.self[call->site], ended->wall - call->children_wall, ended->self, ended->known_self);
}

void lines_free(struct lines *lines)
{
    sites_free(&lines->at);
    free(lines->self);
}

/* From here on, find out. `first_line`: of each function of rebuild_functions(); `lined`: becomes 1 for each of which there are
 * lines. They have to stay where they are. Before anything is taken. */
OFFERED bool rebuild_want_lines(struct engine *engine, const int32_t *first_line, uint8_t *lined)
{
    if (!engine->layer || engine->wants_tree || engine->wants_rows || engine->wants_edges || engine->wants_cores)
        return engine->error = STRANGE_STATE, false;
    engine->lines.first_line = first_line;
    engine->lines.lined = lined;
    engine->wants_lines = true;
    return true;
}

/* What was found: sites whose `caller` is the function, and whose `calls` are hits; line -1 is unknown. `self`: the time of
 * each without what was called. Returns how many there are. */
OFFERED size_t rebuild_lines(const struct engine *engine, const struct site **sites, const struct sums **self)
{
    *sites = engine->lines.at.site;
    *self = engine->lines.self;
    return engine->lines.at.count;
}
