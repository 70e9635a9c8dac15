/* What threads did, played again with other lengths: each does its steps in their order, as soon as there is a core, the GIL, and what it waits for. */
#include <stdlib.h>

#include "common.h"

enum { WORK, WAIT, PAUSE, SIGNAL, MARK };
#define NOBODY (-1)

struct replay_steps { /* by thread, in their order */
    const uint8_t *kind;
    const int64_t *value; /* WORK, PAUSE: ns; WAIT, SIGNAL: of what, and behind a WAIT the pause that follows where it was waited; MARK: where the moment is written */
    const uint8_t *locked; /* WORK: with the GIL */
    size_t rows;
};

struct replay_threads {
    const int64_t *first; /* of each thread its first step; one more at the end */
    const int32_t *gil;   /* its process's, NOBODY none */
    size_t rows;
};

struct replay_host {
    int64_t cores, core_ns, gil_ns; /* how many, and for how long a thread has one, or the GIL, that another waits for */
    size_t gils, signals;
};

struct queue {
    int32_t head, tail;
};

struct player {
    size_t step, end;
    int64_t left, since, core_left; /* of the work at hand; when it last went on; of its time on the core */
    int32_t gil, next;              /* next: in the queue that it is in */
    bool works;                     /* and has not paused */
};

struct gil {
    int32_t owner;
    int64_t since; /* when it was taken, or somebody first waited for it */
    struct queue waiting;
};

struct due {
    int64_t ts, order;
    int32_t thread;
};

struct replay {
    const struct replay_steps *steps;
    const struct replay_host *host;
    struct player *player;
    struct gil *gil;
    int32_t *waits; /* by signal: who waits for it, NOBODY, or that it was given */
    struct due *heap;
    size_t heaped;
    struct queue ready;
    int64_t free, order, *marks;
};
#define GIVEN (-2)

static void put(struct replay *all, struct queue *queue, int32_t thread)
{
    all->player[thread].next = NOBODY;
    if (queue->head == NOBODY)
        queue->head = thread;
    else
        all->player[queue->tail].next = thread;
    queue->tail = thread;
}

static int32_t take(struct replay *all, struct queue *queue)
{
    int32_t thread = queue->head;
    queue->head = all->player[thread].next;
    return thread;
}

static bool before(struct due a, struct due b)
{
    return a.ts < b.ts || (a.ts == b.ts && a.order < b.order);
}

static void at(struct replay *all, int64_t ts, int32_t thread)
{
    struct due due = {ts, all->order++, thread};
    size_t place = all->heaped++;
    for (; place && before(due, all->heap[(place - 1) / 2]); place = (place - 1) / 2)
        all->heap[place] = all->heap[(place - 1) / 2];
    all->heap[place] = due;
}

static struct due soonest(struct replay *all)
{
    struct due first = all->heap[0], moved = all->heap[--all->heaped];
    size_t place = 0;
    for (size_t below; (below = 2 * place + 1) < all->heaped; place = below) {
        if (below + 1 < all->heaped && before(all->heap[below + 1], all->heap[below]))
            below++;
        if (before(moved, all->heap[below]))
            break;
        all->heap[place] = all->heap[below];
    }
    all->heap[place] = moved;
    return first;
}

static bool has_gil(struct replay *all, int32_t thread)
{
    int32_t gil = all->player[thread].gil;
    return gil != NOBODY && all->gil[gil].owner == thread;
}

static void let_go(struct replay *all, int32_t thread, int64_t ts)
{
    if (!has_gil(all, thread))
        return;
    struct gil *gil = &all->gil[all->player[thread].gil];
    gil->owner = NOBODY;
    if (gil->waiting.head != NOBODY) {
        gil->owner = take(all, &gil->waiting);
        gil->since = ts;
        put(all, &all->ready, gil->owner);
    }
}

/* Whether the thread has the GIL now; else it waits for it. */
static bool get_gil(struct replay *all, int32_t thread, int64_t ts)
{
    struct gil *gil = &all->gil[all->player[thread].gil];
    if (gil->owner == thread)
        return true;
    if (gil->owner == NOBODY) {
        gil->owner = thread;
        gil->since = ts;
        return true;
    }
    if (gil->waiting.head == NOBODY)
        gil->since = ts;
    put(all, &gil->waiting, thread);
    return false;
}

static void leave(struct replay *all, int32_t thread, int64_t ts)
{
    let_go(all, thread, ts);
    all->free++;
}

/* Go on with a piece of work; false: it waits for the GIL. */
static bool work(struct replay *all, int32_t thread, int64_t ts)
{
    struct player *player = &all->player[thread];
    int64_t length = player->left < player->core_left ? player->left : player->core_left;
    if (player->gil != NOBODY && all->steps->locked[player->step]) {
        if (!get_gil(all, thread, ts)) {
            all->free++;
            return false;
        }
        struct gil *gil = &all->gil[player->gil];
        int64_t own = gil->since + all->host->gil_ns - ts;
        length = own < 1 ? 1 : own < length ? own : length;
    } else {
        let_go(all, thread, ts);
    }
    player->since = ts;
    at(all, ts + length, thread);
    return true;
}

/* A thread that has a core does what takes no time, up to where it works, waits or ends. */
static void go_on(struct replay *all, int32_t thread, int64_t ts)
{
    struct player *player = &all->player[thread];
    for (; player->step < player->end; player->step++) {
        int64_t value = all->steps->value[player->step];
        switch (all->steps->kind[player->step]) {
        case WORK:
            if (!player->works)
                player->left = value;
            player->works = player->left > 0;
            if (player->works) {
                work(all, thread, ts);
                return;
            }
            break;
        case PAUSE:
            if (value > 0) {
                player->step++;
                leave(all, thread, ts);
                at(all, ts + value, thread);
                return;
            }
            break;
        case WAIT:
            if (all->waits[value] != GIVEN) {
                player->step++;
                all->waits[value] = thread;
                leave(all, thread, ts);
                return;
            }
            player->step++; /* who need not wait is not in the run queue afterwards */
            break;
        case SIGNAL:
            if (all->waits[value] != NOBODY)
                put(all, &all->ready, all->waits[value]);
            all->waits[value] = GIVEN;
            break;
        case MARK:
            all->marks[value] = ts;
            break;
        }
    }
    leave(all, thread, ts);
}

/* Some time of a thread's work has passed. */
static void worked(struct replay *all, int32_t thread, int64_t ts)
{
    struct player *player = &all->player[thread];
    player->left -= ts - player->since;
    player->core_left -= ts - player->since;
    if (!player->left) {
        player->works = false;
        player->step++;
    }
    if (has_gil(all, thread)) {
        struct gil *gil = &all->gil[player->gil];
        if (ts - gil->since >= all->host->gil_ns) {
            if (gil->waiting.head != NOBODY)
                let_go(all, thread, ts);
            else
                gil->since = ts;
        }
    }
    if (player->core_left <= 0) {
        player->core_left = all->host->core_ns;
        if (player->works && all->ready.head != NOBODY) { /* with the GIL, where it has that */
            put(all, &all->ready, thread);
            all->free++;
            return;
        }
    }
    go_on(all, thread, ts);
}

static void play(struct replay *all)
{
    int64_t ts = 0;
    for (;;) {
        while (all->free && all->ready.head != NOBODY) {
            int32_t thread = take(all, &all->ready);
            all->free--;
            all->player[thread].core_left = all->host->core_ns;
            go_on(all, thread, ts);
        }
        if (!all->heaped)
            return;
        struct due due = soonest(all);
        ts = due.ts;
        if (all->player[due.thread].works)
            worked(all, due.thread, ts);
        else
            put(all, &all->ready, due.thread);
    }
}

/* When, from 0 on, each MARK was come to; those that are not, since what they wait for never comes, are left as they are. false: no memory. */
OFFERED bool rebuild_replay(const struct replay_steps *steps, const struct replay_threads *threads, const struct replay_host *host, int64_t *marks)
{
    struct replay all = {.steps = steps, .host = host, .ready = {NOBODY, NOBODY}, .free = host->cores, .marks = marks};
    all.player = calloc(threads->rows + 1, sizeof *all.player);
    all.heap = malloc((threads->rows + 1) * sizeof *all.heap);
    all.gil = malloc((host->gils + 1) * sizeof *all.gil);
    all.waits = malloc((host->signals + 1) * sizeof *all.waits);
    bool fine = all.player && all.heap && all.gil && all.waits;
    if (fine) {
        for (size_t k = 0; k < host->gils; k++)
            all.gil[k] = (struct gil){NOBODY, 0, {NOBODY, NOBODY}};
        for (size_t k = 0; k < host->signals; k++)
            all.waits[k] = NOBODY;
        for (size_t k = 0; k < threads->rows; k++) {
            all.player[k] = (struct player){.step = (size_t)threads->first[k], .end = (size_t)threads->first[k + 1], .gil = threads->gil[k]};
            put(&all, &all.ready, (int32_t)k);
        }
        play(&all);
    }
    free(all.player);
    free(all.heap);
    free(all.gil);
    free(all.waits);
    return fine;
}
