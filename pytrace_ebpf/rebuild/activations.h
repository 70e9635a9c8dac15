/* The stack of a thread's frames: what activations.c and fast_path.c do with it in the same way. */
#ifndef PYTRACE_ACTIVATIONS_H
#define PYTRACE_ACTIVATIONS_H

#include "rebuild.h"

static inline uint32_t *activations_slot(const struct activations *open, int64_t frame)
{
    return &open->newest[hash((uint64_t)frame) >> (64 - open->bits)];
}

/* There must be room. */
static inline void activations_enter(struct activations *open, int64_t frame)
{
    uint32_t at = open->count++;
    open->frame[at] = frame;
    if (!frame)
        return;
    uint32_t *newest = activations_slot(open, frame);
    open->before[at] = *newest;
    *newest = at + 1;
}

/* Take the innermost off. Among those of one hash it is the newest. */
static inline void activations_leave(struct activations *open)
{
    int64_t frame = open->frame[--open->count];
    if (frame)
        *activations_slot(open, frame) = open->before[open->count];
}

/* The place of an open frame plus one; 0 none. */
static inline uint32_t activations_find(const struct activations *open, int64_t frame)
{
    if (!frame || !open->count)
        return 0;
    if (open->frame[open->count - 1] == frame)
        return open->count;
    uint32_t at = *activations_slot(open, frame);
    while (at && open->frame[at - 1] != frame)
        at = open->before[at - 1];
    return at;
}

#endif
