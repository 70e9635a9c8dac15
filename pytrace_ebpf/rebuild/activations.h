/* The stack of a thread's frames, and which open call an event ends or begins. */
#ifndef PYTRACE_ACTIVATIONS_H
#define PYTRACE_ACTIVATIONS_H

#include "common.h"

/* How a thread's rows begin: after others; its very first; first after a loss. In the last two some may be of calls entered before. */
enum beginning { SETTLED, FIRST, AFTER_LOSS };

enum does { NOTHING, ENTERS, LEAVES, ORPHAN, LEAVES_OLDER, RESETS, IS_AT };

/* What an event does to the open calls: it ends `closes` of them whose returns were not reported, then `does`. */
struct step {
    uint32_t closes;
    uint32_t does; /* enum does; ORPHAN: a call of which only the return was recorded; IS_AT: the innermost call is at a line */
};

/* The frames of a thread's open calls, outermost first; 0 = unknown. */
struct activations {
    int64_t *frame;
    uint32_t *before; /* of the same hash: the place in `frame` plus one of the one entered before it, 0 none */
    uint32_t *newest; /* by hash: the place plus one of the one entered last */
    uint32_t count, capacity, bits;
    /* while looking ahead, see activations.c */
    uint32_t base;
    bool base_returned;
    enum beginning begins;
    uint32_t ended_before, entered_before;
};

/* A set of frames. */
struct frames {
    int64_t *slot;
    size_t count, capacity;
};

bool activations_take(struct activations *open, struct frames *seen, int kind, int64_t frame, struct step *step);
bool activations_look_ahead(struct activations *open, enum beginning begins, struct frames *seen);
void activations_free(struct activations *open);
bool activations_push(struct activations *open, int64_t frame);

/* What activations.c and fast_path.c do with it in the same way. */

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
