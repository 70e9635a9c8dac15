/* A call on the stack: what calls.c and fast_path.c do with it in the same way. */
#ifndef PYTRACE_STACK_H
#define PYTRACE_STACK_H

#include "engine.h"

/* The place of a function in engine->layer and the like. */
static inline uint32_t function_of(const struct engine *engine, int32_t func)
{
    return func >= 0 && (uint32_t)func < engine->functions ? (uint32_t)func : engine->functions;
}

/* The line that `caller`, which may be NULL, called from; -1 unknown. */
static inline int32_t line_of(const struct engine *engine, const struct call *caller, int32_t line)
{
    return line > 0 && caller && engine->layer[function_of(engine, caller->func)] == PYTHON ? line : -1;
}

static inline int32_t named(const struct engine *engine, int32_t func)
{
    return (uint32_t)func < engine->functions ? func : -1;
}

/* Whether a call has a row. */
static inline bool wants_row(const struct engine *engine, int32_t func, uint8_t flags)
{
    if (!engine->row_of)
        return true;
    uint8_t wanted = engine->row_of[function_of(engine, func)];
    return wanted == ROWS || (wanted == ROWS_OF_SUSPENDED && engine->rows_of_suspended && flags & (RESUMED | YIELDED));
}

static inline bool tree_is(const struct node *node, uint32_t parent, int32_t func, uint8_t outermost)
{
    return node->parent == parent && node->func == func && node->outermost == outermost;
}

/* As tree_child() where a caller calls what it did at the same place the last time, which programs do. */
static inline bool tree_again(const struct tree *tree, uint32_t parent, int32_t func, uint8_t outermost, uint32_t *newest, uint32_t *node)
{
    uint32_t guess = tree->node[*newest ? *newest : parent].follows[!*newest];
    if (!guess || !tree_is(&tree->node[guess], parent, func, outermost))
        return false;
    *node = *newest = guess;
    return true;
}

/* As sites_find(), of the one that was found last. */
static inline bool sites_again(const struct sites *sites, int32_t caller, int32_t line, int32_t func, uint32_t number)
{
    const struct site *site = &sites->site[number];
    return number < sites->count && site->func == func && site->line == line && site->caller == caller;
}

/* Of a call that is entered; the next of its thread. Its place in the tree and among sites is not known yet. */
static inline void call_begins(struct call *call, struct thread *thread, int64_t ns, int32_t func, int32_t line, int64_t frame, uint8_t flags)
{
    call->start_ns = ns; /* one by one: all at once takes as long as the rest of calls_enter() */
    call->sequence = thread->sequence++;
    call->frame = frame;
    call->children_wall = 0;
    for (int part = 0; part < PARTS; part++)
        call->children[part] = 0;
    call->slot = 0;
    call->piece = 0;
    call->func = func;
    call->line = line;
    call->node = call->site = call->newest = 0;
    call->flags = flags;
    call->unknown_below = call->outermost = call->outermost_of_site = 0;
    call->level = call->highest = thread->level;
    call->owed = call->slices = 0;
    call->busy_ns = 0;
}

#endif
