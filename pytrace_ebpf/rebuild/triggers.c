/* Whether something happened that a recording waits for, decided on each segment as it is recorded: a call that takes too long, one that
 * an exception leaves, an event loop that is held, a thread that waits for too large a share of the time.
 *
 * A call that has not ended yet counts up to the segment's end. Which calls are open activations.c says, what state a thread is in
 * states.c. Where events were lost nothing is judged: what was open then is never judged any more, and shares begin anew.
 * Memory is bounded by the open calls, the threads, and MOST_SUSPENDED coroutines. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

#define CONDITIONS 32
#define TENTHS 10
#define MOST_SUSPENDED (1 << 20) /* of others a call is what lies between two suspensions */

enum happening { CALL_TAKES, LOOP_HELD, RAISES, SHARE_WAITED };

/* library.py has the same, and `struct hit` too. */
struct condition {
    int64_t over; /* ns: of a call, of a loop; SHARE_WAITED: of `span` */
    int64_t span; /* ns, a multiple of TENTHS */
    int32_t what; /* enum happening */
    int32_t state; /* SHARE_WAITED: which */
};

/* The first time in a segment that a condition came true, and how often it did. */
struct hit {
    int64_t ts;         /* when */
    int64_t start, end; /* of the call; end -1: it goes on */
    int64_t key, count;
    int64_t waited;     /* SHARE_WAITED: ns */
    int32_t func, condition;
};

/* By function: which conditions are about it, a bit each, and what it is. */
struct of_function {
    uint32_t wants;
    uint32_t is_coroutine;
};

/* An open call of a function that some condition is about. */
struct watched {
    int64_t start; /* of a coroutine its first entry; NS_NEVER: it is not judged */
    int64_t since; /* its last one */
    int64_t frame;
    uint32_t place; /* among its thread's open calls */
    uint32_t wants, hit;
    uint32_t loops; /* conditions of loops that it or a call below is about */
    int32_t func;
};

/* Any open call: its function, and the line of its entry. */
struct opened {
    int32_t func, line;
};

/* A coroutine between two of its entries. */
struct suspended {
    int64_t start, frame, key;
    int32_t func;
    uint32_t wants, hit;
    bool used;
};

struct share {
    int64_t waited[TENTHS];
    int64_t edge; /* where its newest tenth ends; 0 = none yet */
    uint32_t newest;
    bool above;
};

struct thread_watched {
    int64_t key; /* pid << 32 | tid */
    int64_t last; /* its last event */
    struct activations open;
    struct opened *opened; /* parallel to open.frame */
    struct watched *call; /* outermost first */
    size_t depth, capacity, opened_capacity;
    struct share *share;
    int64_t since, died_ns; /* since when it is in `state`; died: NS_NEVER not known */
    uint8_t state;
    bool is_known, ended;
    size_t rows;
};

struct triggers {
    struct condition condition[CONDITIONS];
    struct hit hit[CONDITIONS];
    size_t conditions, shares;
    uint32_t loops; /* which of them are of loops */
    bool judges;
    struct of_function *function;
    size_t functions;
    struct thread_watched **thread;
    size_t threads, capacity;
    struct places places;
    struct suspended *suspended; /* by hash of process and frame */
    size_t suspended_count, suspended_slots;
    struct sched_row *sched;
    uint8_t *to;
    size_t sched_capacity, to_capacity;
};

/* --- threads --- */

static void free_thread(struct thread_watched *thread)
{
    activations_free(&thread->open);
    free(thread->opened);
    free(thread->call);
    free(thread->share);
    free(thread);
}

/* The thread's; NULL: there is none, and none is to be `made`, or no memory. */
static struct thread_watched *thread_of(struct triggers *all, int64_t key, bool made)
{
    uint32_t place = places_find(&all->places, key);
    if (place != NO_PLACE)
        return all->thread[place];
    if (!made || all->threads >= NO_PLACE || !room(&all->thread, &all->capacity, all->threads + 1, sizeof *all->thread))
        return NULL;
    struct thread_watched *thread = calloc(1, sizeof *thread);
    struct share *share = calloc(all->shares + 1, sizeof *share);
    if (!thread || !share || !places_put(&all->places, key, (uint32_t)all->threads))
        return free(thread), free(share), NULL;
    *thread = (struct thread_watched){.key = key, .last = INT64_MIN, .share = share, .died_ns = NS_NEVER, .state = UNKNOWN};
    return all->thread[all->threads++] = thread;
}

/* --- what came true --- */

static void report(struct triggers *all, uint32_t condition, const struct hit *found)
{
    struct hit *first = &all->hit[condition];
    int64_t count = first->count + 1;
    if (count == 1 || found->ts < first->ts)
        *first = *found;
    first->condition = (int32_t)condition;
    first->count = count;
}

/* A call that is open, or that ended, at `now`. */
static void judge(struct triggers *all, int64_t key, struct watched *call, int64_t now, bool ended)
{
    for (uint32_t left = call->wants & ~call->hit; left; left &= left - 1) {
        uint32_t k = (uint32_t)__builtin_ctz(left);
        const struct condition *condition = &all->condition[k];
        int64_t start = condition->what == LOOP_HELD ? call->since : call->start;
        if (condition->what == RAISES || start == NS_NEVER || now <= start || (uint64_t)now - (uint64_t)start <= (uint64_t)condition->over)
            continue;
        call->hit |= 1u << k;
        report(all, k, &(struct hit){.ts = start + condition->over, .start = start, .end = ended ? now : -1, .key = key, .func = call->func});
    }
}

static void judge_exception(struct triggers *all, int64_t key, const struct watched *call, int64_t now)
{
    for (uint32_t left = call->wants; left; left &= left - 1) {
        uint32_t k = (uint32_t)__builtin_ctz(left);
        if (all->condition[k].what == RAISES && call->start != NS_NEVER)
            report(all, k, &(struct hit){.ts = now, .start = call->start, .end = now, .key = key, .func = call->func});
    }
}

/* --- coroutines --- */

static size_t suspended_slot(const struct triggers *all, int64_t key, int64_t frame)
{
    return hash((uint64_t)frame ^ hash((uint64_t)key >> 32)) >> 20 & (all->suspended_slots - 1);
}

/* The place of a process's frame, or where it would be. */
static struct suspended *suspended_at(const struct triggers *all, int64_t key, int64_t frame)
{
    size_t at = suspended_slot(all, key, frame);
    while (all->suspended[at].used && (all->suspended[at].frame != frame || all->suspended[at].key >> 32 != key >> 32))
        at = (at + 1) & (all->suspended_slots - 1);
    return &all->suspended[at];
}

static bool more_suspended(struct triggers *all)
{
    struct suspended *before = all->suspended;
    size_t slots = all->suspended_slots;
    all->suspended_slots = slots ? 2 * slots : 256;
    all->suspended = calloc(all->suspended_slots, sizeof *all->suspended);
    if (!all->suspended) {
        all->suspended = before;
        all->suspended_slots = slots;
        return false;
    }
    for (size_t k = 0; k < slots; k++)
        if (before[k].used)
            *suspended_at(all, before[k].key, before[k].frame) = before[k];
    free(before);
    return true;
}

/* Take one out; what lies behind it moves up, so that it is still found. */
static void remove_suspended(struct triggers *all, struct suspended *one)
{
    size_t gap = (size_t)(one - all->suspended), mask = all->suspended_slots - 1;
    for (size_t at = (gap + 1) & mask; all->suspended[at].used; at = (at + 1) & mask) {
        size_t home = suspended_slot(all, all->suspended[at].key, all->suspended[at].frame);
        if (((at - home) & mask) >= ((at - gap) & mask)) {
            all->suspended[gap] = all->suspended[at];
            gap = at;
        }
    }
    all->suspended[gap].used = false;
    all->suspended_count--;
}

static bool suspend(struct triggers *all, int64_t key, const struct watched *call)
{
    if (!call->frame || !(call->wants & ~all->loops) || all->suspended_count >= MOST_SUSPENDED)
        return true;
    if (2 * (all->suspended_count + 1) > all->suspended_slots && !more_suspended(all))
        return false;
    struct suspended *place = suspended_at(all, key, call->frame);
    all->suspended_count += !place->used;
    *place = (struct suspended){call->start, call->frame, key, call->func, call->wants & ~all->loops, call->hit, true};
    return true;
}

/* --- events --- */

static bool enter(struct triggers *all, struct thread_watched *thread, int kind, int32_t func, int64_t frame)
{
    struct of_function of = func >= 0 && (size_t)func < all->functions ? all->function[func] : (struct of_function){0};
    struct suspended *before = all->suspended_count && frame ? suspended_at(all, thread->key, frame) : NULL;
    if (!of.wants && !(before && before->used))
        return true;
    int64_t now = all->judges ? thread->last : NS_NEVER;
    struct watched call = {now, now, frame, thread->open.count - 1, of.wants, 0, 0, func};
    if (before && before->used) {
        if (kind == RESUME && of.is_coroutine) {
            call.start = before->start;
            call.hit = before->hit;
        }
        remove_suspended(all, before); /* an entry that is no resume: it was given up, and another one has its frame */
    }
    if (!room(&thread->call, &thread->capacity, thread->depth + 1, sizeof *thread->call))
        return false;
    uint32_t below = thread->depth ? thread->call[thread->depth - 1].loops : 0;
    call.loops = below | (of.wants & all->loops);
    call.wants &= ~below; /* a loop is held by the outermost call that it makes */
    call.hit &= ~all->loops;
    thread->call[thread->depth++] = call;
    return true;
}

/* The call that ended now as an event says. */
static bool leave(struct triggers *all, struct thread_watched *thread, int kind)
{
    struct watched *call = &thread->call[thread->depth];
    bool is_coroutine = call->func >= 0 && (size_t)call->func < all->functions && all->function[call->func].is_coroutine;
    judge(all, thread->key, call, thread->last, kind != YIELD || !is_coroutine);
    if (kind == UNWIND)
        judge_exception(all, thread->key, call, thread->last);
    return kind != YIELD || !is_coroutine || suspend(all, thread->key, call);
}

static bool take_event(struct triggers *all, struct thread_watched *thread, const struct events *events, size_t row)
{
    int kind = events->kind[row];
    struct step step;
    uint32_t open = thread->open.count;
    if (!activations_take(&thread->open, NULL, kind, events->frame[row], &step))
        return false;
    int64_t ts = events->ts[row];
    thread->last = ts > thread->last ? ts : thread->last;
    if (step.does == IS_AT || step.does == NOTHING)
        return true;
    uint32_t stays = open - step.closes;
    if (step.does == RESETS)
        for (size_t k = 0; k < thread->depth; k++)
            judge(all, thread->key, &thread->call[k], thread->last, true);
    while (thread->depth && thread->call[thread->depth - 1].place >= stays) /* when they ended was not reported */
        thread->depth--;
    if (step.does == ENTERS) {
        if (thread->open.count > thread->opened_capacity &&
            !room(&thread->opened, &thread->opened_capacity, thread->open.count, sizeof *thread->opened))
            return false;
        thread->opened[thread->open.count - 1] = (struct opened){events->func[row], events->line[row]};
        return enter(all, thread, kind, events->func[row], events->frame[row]);
    }
    if (step.does != LEAVES || !thread->depth || thread->call[thread->depth - 1].place != stays - 1)
        return true;
    thread->depth--;
    return leave(all, thread, kind);
}

/* From now on the calls that are open are not judged any more. */
static void forget_times(struct triggers *all)
{
    for (size_t k = 0; k < all->threads; k++)
        for (size_t at = 0; at < all->thread[k]->depth; at++)
            all->thread[k]->call[at].start = all->thread[k]->call[at].since = NS_NEVER;
    for (size_t k = 0; k < all->suspended_slots; k++)
        all->suspended[k].start = NS_NEVER;
}

/* --- exported functions --- */

OFFERED struct triggers *rebuild_triggers_open(const struct condition *conditions, size_t count)
{
    struct triggers *all = count <= CONDITIONS ? calloc(1, sizeof *all) : NULL;
    if (!all)
        return NULL;
    memcpy(all->condition, conditions, count * sizeof *conditions);
    all->conditions = count;
    for (size_t k = 0; k < count; k++) {
        all->loops |= conditions[k].what == LOOP_HELD ? 1u << k : 0;
        all->shares = conditions[k].what == SHARE_WAITED ? k + 1 : all->shares;
    }
    return all;
}

OFFERED void rebuild_triggers_close(struct triggers *all)
{
    for (size_t k = 0; k < all->threads; k++)
        free_thread(all->thread[k]);
    free(all->thread);
    free(all->places.slot);
    free(all->function);
    free(all->suspended);
    free(all->sched);
    free(all->to);
    free(all);
}

/* By function, from 0 on; those that were given before keep what they had. False: no memory. */
OFFERED bool rebuild_triggers_functions(struct triggers *all, const struct of_function *function, size_t count)
{
    struct of_function *copy = realloc(all->function, (count + 1) * sizeof *copy);
    if (!copy)
        return false;
    memcpy(copy, function, count * sizeof *copy);
    all->function = copy;
    all->functions = count;
    return true;
}

/* Take a segment's events, or some of them. `lost`: some of that segment were lost. False: no memory, or a strange kind. */
OFFERED bool rebuild_triggers_events(struct triggers *all, const struct events *events, bool lost)
{
    if (lost)
        forget_times(all);
    all->judges = !lost;
    struct thread_watched *thread = NULL;
    for (size_t row = 0; row < events->rows; row++) {
        int64_t key = key_of(events->pid[row], events->tid[row]);
        if ((uint8_t)events->kind[row] >= CALL_KINDS || ((!thread || thread->key != key) && !(thread = thread_of(all, key, true))) ||
            !take_event(all, thread, events, row))
            return false;
    }
    return true;
}

static void pass_time(struct triggers *all, struct thread_watched *thread, uint32_t k, int64_t from, int64_t to)
{
    const struct condition *condition = &all->condition[k];
    struct share *share = &thread->share[k];
    const int64_t tenth = condition->span / TENTHS;
    const bool waits = thread->state == condition->state;
    if (!share->edge)
        share->edge = from - from % tenth + tenth;
    for (int passed = 0; to >= share->edge; passed++) {
        if (passed > TENTHS) { /* it is as it was at the last edges */
            share->edge = to - to % tenth + tenth;
            from = share->edge - tenth;
            break;
        }
        share->waited[share->newest] += waits ? share->edge - from : 0;
        int64_t sum = 0;
        for (int at = 0; at < TENTHS; at++)
            sum += share->waited[at];
        if (sum > condition->over && !share->above)
            report(all, k, &(struct hit){.ts = share->edge, .start = -1, .end = -1, .key = thread->key, .waited = sum, .func = -1});
        share->above = sum > condition->over;
        share->newest = (share->newest + 1) % TENTHS;
        share->waited[share->newest] = 0;
        from = share->edge;
        share->edge += tenth;
    }
    share->waited[share->newest] += waits ? to - from : 0;
}

static void pass(struct triggers *all, struct thread_watched *thread, int64_t to)
{
    to = to < 0 ? 0 : to;
    if (thread->is_known && to > thread->since)
        for (uint32_t k = 0; k < all->shares; k++)
            if (all->condition[k].what == SHARE_WAITED)
                pass_time(all, thread, k, thread->since, to);
    thread->since = thread->is_known && to < thread->since ? thread->since : to;
    thread->is_known = true;
}

static bool take_run(struct triggers *all, struct thread_watched *thread, const struct switches *rows, const size_t *order, size_t count,
                     const int64_t *gil)
{
    if (!room(&all->sched, &all->sched_capacity, count, sizeof *all->sched) || !room(&all->to, &all->to_capacity, count, sizeof *all->to))
        return false;
    for (size_t k = 0; k < count; k++) {
        size_t row = order[k];
        all->sched[k] = (struct sched_row){
            .ts = rows->ts[row], .address = rows->address[row], .state = rows->state[row], .syscall = rows->syscall[row],
            .kind = (uint8_t)rows->kind[row]
        };
    }
    states_decide(all->sched, count, thread->state, gil[0], gil[1], all->to, NULL);
    for (size_t k = 0; k < count; k++)
        if (all->to[k] != DROPPED) {
            pass(all, thread, all->sched[k].ts);
            thread->state = all->to[k];
        }
    return true;
}

/* The GIL of a process among `count`, sorted by pid. */
static const int64_t *gil_of(int32_t pid, const int32_t *pids, const int64_t (*gil)[2], size_t count)
{
    static const int64_t unknown[2];
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (pids[middle] < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && pids[low] == pid ? gil[low] : unknown;
}

/* Take a segment's scheduling, in the order of time. `lost`: some of it was lost, which makes the rest useless. False: no memory, or a strange kind. */
OFFERED bool rebuild_triggers_switches(struct triggers *all, const struct switches *rows, bool lost, const int32_t *pids,
                                       const int64_t (*gil)[2], size_t processes)
{
    for (size_t k = 0; lost && k < all->threads; k++) {
        memset(all->thread[k]->share, 0, all->shares * sizeof *all->thread[k]->share);
        all->thread[k]->state = UNKNOWN;
        all->thread[k]->is_known = false;
    }
    if (lost || !all->shares || !rows->rows)
        return true;
    struct thread_watched **of = malloc(rows->rows * sizeof(*of));
    size_t *order = malloc(rows->rows * sizeof *order);
    bool fine = of && order;
    for (size_t k = 0; k < all->threads; k++)
        all->thread[k]->rows = 0;
    for (size_t row = 0; fine && row < rows->rows; row++) {
        fine = (uint8_t)rows->kind[row] < SCHED_KINDS && (of[row] = thread_of(all, key_of(rows->pid[row], rows->tid[row]), true));
        if (fine)
            of[row]->rows++;
    }
    size_t at = 0;
    for (size_t k = 0; fine && k < all->threads; k++) {
        size_t count = all->thread[k]->rows;
        all->thread[k]->rows = at;
        at += count;
    }
    for (size_t row = 0; fine && row < rows->rows; row++)
        order[of[row]->rows++] = row;
    at = 0;
    for (size_t k = 0; fine && k < all->threads; k++) { /* `rows` is where its rows end now */
        struct thread_watched *thread = all->thread[k];
        if (thread->rows > at)
            fine = take_run(all, thread, rows, order + at, thread->rows - at, gil_of((int32_t)(thread->key >> 32), pids, gil, processes));
        at = thread->rows > at ? thread->rows : at;
    }
    free(of);
    free(order);
    return fine;
}

static bool forget_ended(struct triggers *all)
{
    size_t left = 0;
    for (size_t k = 0; k < all->threads; k++)
        if (all->thread[k]->ended)
            free_thread(all->thread[k]);
        else
            all->thread[left++] = all->thread[k];
    all->threads = left;
    places_clear(&all->places);
    bool fine = true;
    for (size_t k = 0; fine && k < left; k++)
        fine = places_put(&all->places, all->thread[k]->key, (uint32_t)k);
    return fine;
}

/* Threads that ended, and when; tid 0: a process, whose coroutines are forgotten. False: no memory. */
OFFERED bool rebuild_triggers_ended(struct triggers *all, const int32_t *pid, const int32_t *tid, const int64_t *end_ns, size_t count)
{
    bool some = false;
    for (size_t k = 0; k < count; k++) {
        if (!tid[k]) {
            for (size_t at = 0; at < all->suspended_slots;)
                if (all->suspended[at].used && all->suspended[at].key >> 32 == pid[k])
                    remove_suspended(all, &all->suspended[at]);
                else
                    at++;
            continue;
        }
        struct thread_watched *thread = thread_of(all, key_of(pid[k], tid[k]), false);
        if (!thread)
            continue;
        for (size_t at = 0; at < thread->depth; at++)
            judge(all, thread->key, &thread->call[at], end_ns[k], true);
        pass(all, thread, end_ns[k]);
        thread->ended = some = true;
    }
    return !some || forget_ended(all);
}

/* The segment ends: judge what goes on. */
OFFERED void rebuild_triggers_judge(struct triggers *all, int64_t end_ns)
{
    for (size_t k = 0; k < all->threads; k++) {
        struct thread_watched *thread = all->thread[k];
        for (size_t at = 0; at < thread->depth; at++)
            judge(all, thread->key, &thread->call[at], end_ns, false);
        if (thread->is_known)
            pass(all, thread, end_ns);
    }
    for (size_t k = 0; k < all->suspended_slots; k++) {
        struct suspended *one = &all->suspended[k];
        struct watched call = {.start = one->start, .since = NS_NEVER, .wants = one->wants, .hit = one->hit, .func = one->func};
        if (one->used) {
            judge(all, one->key, &call, end_ns, false);
            one->hit = call.hit;
        }
    }
}

/* What came true since the last time, at most one of each condition; returns how many. */
OFFERED size_t rebuild_triggers_hits(struct triggers *all, struct hit *hits)
{
    size_t found = 0;
    for (size_t k = 0; k < all->conditions; k++)
        if (all->hit[k].count)
            hits[found++] = all->hit[k];
    memset(all->hit, 0, sizeof all->hit);
    return found;
}

OFFERED size_t rebuild_triggers_open_count(const struct triggers *all)
{
    size_t calls = 0;
    for (size_t k = 0; k < all->threads; k++)
        calls += all->thread[k]->open.count;
    return calls;
}

/* The open calls, thread by thread and outermost first: as many as rebuild_triggers_open_count() says. */
OFFERED void rebuild_triggers_open_list(const struct triggers *all, int32_t *pid, int32_t *tid, int32_t *func, int32_t *line, int64_t *frame)
{
    size_t row = 0;
    for (size_t k = 0; k < all->threads; k++) {
        const struct thread_watched *thread = all->thread[k];
        for (uint32_t at = 0; at < thread->open.count; at++, row++) {
            pid[row] = (int32_t)(thread->key >> 32);
            tid[row] = (int32_t)thread->key;
            func[row] = thread->opened[at].func;
            line[row] = thread->opened[at].line;
            frame[row] = thread->open.frame[at];
        }
    }
}
