/* What determined how long a thread took from one moment to another: its time walked backwards, and through each wait that of the thread that ended it.
 *
 * A thread sleeps while it waits, so nothing that it did meanwhile can be met again; made-up or damaged rows that say otherwise end no walk either: a
 * thread that is come to while it waits itself is followed no further, so each step from thread to thread is followed by a piece of time. */
#include <stdlib.h>

#include "common.h"

enum { ON_CORE, IN_QUEUE, WAITS_FOR, NOT_KNOWN };

struct path_waits { /* by thread, and of each in the order of time */
    const int64_t *start, *until, *end;
    const int32_t *next; /* the thread that ended it, -1 none */
    size_t rows;
};

struct path_threads {
    const int64_t *first; /* of each thread its first wait; one more at the end */
    const uint8_t *born;  /* whether that is for its first core */
    size_t rows;
};

struct path_spans { /* what is asked for */
    const int32_t *thread;
    const int64_t *from, *to;
    size_t rows;
};

struct path_out { /* the pieces, the last of each span first */
    int32_t *span, *thread;
    int64_t *start, *end, *wait, *through; /* through: the wait that led to this thread; both -1 none */
    uint8_t *kind;
    size_t rows;
};

struct level {
    int32_t thread;
    bool fresh; /* nothing of it was met yet */
    int64_t floor, through;
};

struct levels {
    struct level *level;
    size_t count, room;
};

static bool push(struct levels *all, struct level level)
{
    if (all->count == all->room) {
        size_t room = all->room ? 2 * all->room : 64;
        struct level *more = realloc(all->level, room * sizeof *more);
        if (!more)
            return false;
        all->level = more;
        all->room = room;
    }
    all->level[all->count++] = level;
    return true;
}

/* The last wait of a thread that began before `ts`; -1 none. */
static int64_t last_before(const struct path_waits *waits, const struct path_threads *threads, int32_t thread, int64_t ts)
{
    int64_t first = threads->first[thread], low = first, high = threads->first[thread + 1];
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (waits->start[middle] < ts)
            low = middle + 1;
        else
            high = middle;
    }
    return low > first ? low - 1 : -1;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

struct stretch {
    int64_t start, wait;
    uint8_t kind;
};

/* What the thread did last before `ts`; where that leads to another thread, false, and that is on top. */
static bool step(const struct path_waits *waits, const struct path_threads *threads, struct levels *all, int64_t ts, struct stretch *out, bool *fine)
{
    struct level *top = &all->level[all->count - 1];
    int64_t at = last_before(waits, threads, top->thread, ts), first = threads->first[top->thread];
    if (at < 0) {
        bool born = threads->born[top->thread];
        int32_t maker = born ? waits->next[first] : -1;
        if (maker >= 0 && !top->fresh) {
            top->thread = maker;
            top->fresh = true;
            return false;
        }
        *out = (struct stretch){top->floor, -1, born ? NOT_KNOWN : ON_CORE};
    } else if (waits->end[at] < ts) {
        *out = (struct stretch){later(waits->end[at], top->floor), -1, ON_CORE};
    } else if (waits->until[at] < ts) {
        *out = (struct stretch){later(waits->until[at], top->floor), at, IN_QUEUE};
    } else {
        int64_t floor = later(waits->start[at], top->floor);
        int32_t next = waits->next[at];
        if (next >= 0 && next != top->thread && waits->until[at] == ts && !top->fresh) {
            *fine = push(all, (struct level){next, true, floor, at});
            return false;
        }
        *out = (struct stretch){floor, at, WAITS_FOR};
    }
    top->fresh = false;
    return true;
}

/* The pieces of each span, of which as many are written as there is room for; how many there are, but `most` + 1 where there are more; SIZE_MAX: no memory. They are as long as the span together. */
OFFERED size_t rebuild_critical_path(const struct path_waits *waits, const struct path_threads *threads, const struct path_spans *spans, struct path_out *out,
                                     size_t most)
{
    struct levels all = {0};
    size_t count = 0;
    bool fine = true;
    for (size_t span = 0; span < spans->rows && fine && count <= most; span++) {
        int64_t ts = spans->to[span];
        fine = push(&all, (struct level){spans->thread[span], false, spans->from[span], -1});
        while (all.count && fine && count <= most) {
            struct level top = all.level[all.count - 1];
            struct stretch piece;
            if (ts <= top.floor) {
                all.count--;
            } else if (step(waits, threads, &all, ts, &piece, &fine)) {
                if (count < out->rows) {
                    out->span[count] = (int32_t)span;
                    out->thread[count] = top.thread;
                    out->start[count] = piece.start;
                    out->end[count] = ts;
                    out->wait[count] = piece.wait;
                    out->through[count] = top.through;
                    out->kind[count] = piece.kind;
                }
                count++;
                ts = piece.start;
            }
        }
    }
    free(all.level);
    return fine ? count : SIZE_MAX;
}
