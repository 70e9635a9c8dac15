/* Which open call an event ends or begins, and how it is repaired where entries and returns do not match.
 *
 * An event says what happened and in which frame; a frame stands for one activation at a time. The rules are those of a stack:
 *
 * 1. A return ends its own activation and, as lost returns, whatever is above it.
 * 2. An entry into a frame that is in use proves that its activation and all above it have ended.
 * 3. A return of an activation that is not open is an orphan: it gets an entry at the event before it
 *    (CPython 3.15: a generator resumed by throw() reports only the return).
 * 4. Frame 0 is unknown: it stands for the innermost activation. So does any frame that is nowhere open, for an unknown one.
 * 5. exec (RESET) ends everything.
 *
 * A thread's first rows, and the first after a loss, may also belong to activations from before them. These rows are looked at
 * ahead, since calls that turn out to have been entered before stand first. Then:
 *
 * 6. A return that would be an orphan is of an activation entered before, if nothing entered since is open (nor, after a loss,
 *    has anything from before it returned), and if its frame was not met before.
 * 7. After a loss, what is above an activation from before it may have ended within the loss: rules 1 and 2 then end it there
 *    and not now, as long as no activation from before has returned. What was entered since is ended now as ever. */
#include <stdlib.h>
#include <string.h>

#include "activations.h"
#include "engine.h"

#define FEW_BITS 5
#define FEW_FRAMES 4096

static bool grow(struct activations *open)
{
    uint32_t bits = open->bits ? open->bits + 1 : FEW_BITS;
    if (bits > 31)
        return false;
    uint32_t capacity = 1u << bits;
    int64_t *frame = realloc(open->frame, capacity * sizeof *frame);
    if (frame)
        open->frame = frame;
    uint32_t *before = realloc(open->before, capacity * sizeof *before);
    if (before)
        open->before = before;
    uint32_t *newest = calloc(capacity, sizeof *newest);
    if (!frame || !before || !newest) {
        free(newest);
        return false;
    }
    free(open->newest);
    open->newest = newest;
    open->capacity = capacity;
    open->bits = bits;
    uint32_t count = open->count;
    for (open->count = 0; open->count < count;)
        activations_enter(open, frame[open->count]);
    return true;
}

void activations_free(struct activations *open)
{
    free(open->frame);
    free(open->before);
    free(open->newest);
}

static inline bool push(struct activations *open, int64_t frame)
{
    if (open->count == open->capacity && !grow(open))
        return false;
    activations_enter(open, frame);
    return true;
}

bool activations_push(struct activations *open, int64_t frame)
{
    return push(open, frame);
}

/* Take the innermost off. */
static inline void pop(struct activations *open)
{
    activations_leave(open);
    if (open->count < open->base) {
        open->base = open->count;
        open->base_returned = true;
    }
}

static void close_down_to(struct activations *open, uint32_t height, struct step *step)
{
    while (open->count > height) {
        pop(open);
        step->closes++;
    }
}

/* Rule 7: whether what lies at `place` and above, of the base, can have ended in the loss. */
static bool may_have_ended_in_loss(const struct activations *open, uint32_t at)
{
    return open->begins == AFTER_LOSS && at < open->base && !open->base_returned;
}

static bool end_in_loss(struct activations *open, uint32_t height)
{
    if (height >= open->base)
        return true;
    uint32_t base = open->base, stays = open->count - base;
    int64_t *since = malloc(stays * sizeof *since + 1);
    if (!since)
        return false;
    memcpy(since, open->frame + base, stays * sizeof *since);
    open->ended_before += base - height;
    open->base = height;
    while (open->count > height)
        pop(open);
    for (uint32_t k = 0; k < stays; k++)
        push(open, since[k]); /* there was room for more */
    free(since);
    return true;
}

/* Rule 6. */
static bool may_be_older(const struct activations *open, const struct frames *seen, int64_t frame);

static bool enter(struct activations *open, int64_t frame, struct step *step)
{
    uint32_t found = activations_find(open, frame);
    if (found && may_have_ended_in_loss(open, found - 1)) {
        if (!end_in_loss(open, found - 1))
            return false;
    } else if (found) {
        close_down_to(open, found - 1, step);
    }
    step->does = ENTERS;
    return push(open, frame);
}

static bool leave(struct activations *open, const struct frames *seen, int64_t frame, struct step *step)
{
    uint32_t found = activations_find(open, frame);
    if (!found && open->count && (!frame || !open->frame[open->count - 1]))
        found = open->count;
    if (!found) {
        step->does = may_be_older(open, seen, frame) ? LEAVES_OLDER : ORPHAN;
        open->entered_before += step->does == LEAVES_OLDER;
        return true;
    }
    if (may_have_ended_in_loss(open, found - 1)) {
        close_down_to(open, open->base, step);
        if (!end_in_loss(open, found))
            return false;
    }
    close_down_to(open, found, step);
    pop(open);
    step->does = LEAVES;
    return true;
}

static void remember(struct frames *seen, int64_t frame)
{
    size_t mask = seen->capacity - 1, at = hash((uint64_t)frame) >> 20 & mask;
    while (seen->slot[at] && seen->slot[at] != frame)
        at = (at + 1) & mask;
    seen->count += !seen->slot[at];
    seen->slot[at] = frame;
}

static bool has_seen(const struct frames *seen, int64_t frame)
{
    if (!frame || !seen->capacity)
        return false;
    size_t mask = seen->capacity - 1, at = hash((uint64_t)frame) >> 20 & mask;
    while (seen->slot[at] && seen->slot[at] != frame)
        at = (at + 1) & mask;
    return seen->slot[at];
}

static bool see(struct frames *seen, int64_t frame)
{
    if (!frame)
        return true;
    if (seen->count * 2 >= seen->capacity) {
        struct frames more = {.capacity = seen->capacity ? seen->capacity * 2 : FEW_FRAMES / 4};
        more.slot = calloc(more.capacity, sizeof *more.slot);
        if (!more.slot)
            return false;
        for (size_t k = 0; k < seen->capacity; k++)
            if (seen->slot[k])
                remember(&more, seen->slot[k]);
        free(seen->slot);
        *seen = more;
    }
    remember(seen, frame);
    return true;
}

static bool may_be_older(const struct activations *open, const struct frames *seen, int64_t frame)
{
    if (open->begins == SETTLED || has_seen(seen, frame))
        return false;
    return open->begins == FIRST ? !open->count : open->count == open->base && !open->base_returned;
}

/* From here on rows are looked at ahead, until `begins` is SETTLED. */
bool activations_look_ahead(struct activations *open, enum beginning begins, struct frames *seen)
{
    open->begins = begins;
    open->base = begins == AFTER_LOSS ? open->count : 0;
    open->base_returned = false;
    open->ended_before = open->entered_before = 0;
    if (seen->capacity > FEW_FRAMES) { /* clearing it for each of many threads would take long */
        free(seen->slot);
        *seen = (struct frames){0};
    } else if (seen->count) {
        memset(seen->slot, 0, seen->capacity * sizeof *seen->slot);
        seen->count = 0;
    }
    for (uint32_t at = 0; at < open->count; at++)
        if (!see(seen, open->frame[at]))
            return false;
    return true;
}

/* A line is the innermost frame's or, of a frame that is not known to be open, nobody's. */
static void come_to(const struct activations *open, int64_t frame, struct step *step)
{
    step->does = open->count && (!frame || open->frame[open->count - 1] == frame) ? IS_AT : NOTHING;
}

/* The next event of a thread. */
bool activations_take(struct activations *open, struct frames *seen, int kind, int64_t frame, struct step *step)
{
    step->closes = 0;
    bool fine = true;
    switch (kind) {
    case ENTRY:
    case OPEN:
    case RESUME:
        fine = enter(open, frame, step);
        break;
    case RESET:
        close_down_to(open, 0, step);
        step->does = RESETS;
        return true;
    case LINE:
    case STANDS:
        come_to(open, frame, step);
        return true;
    default:
        fine = leave(open, seen, frame, step);
    }
    return fine && (open->begins == SETTLED || see(seen, frame));
}
