/* What is charged to calls: amounts of something, each to the call that was innermost at a moment, as of innermost_at.c.
 *
 * Sums are kept by node of the tree: they say what calls used by themselves, and with those below them it is the sum of the
 * nodes below. What is used outside of calls is in no sum. Two kinds are no sums: LEVEL is by how much a level of the thread
 * changes, and PEAK, before that, how far above where it was it has been; of them the highest that any call of a node
 * raised the level to, from where it was at its entry, is kept in the place of PEAK. An amount of GONE_SINCE takes back one of
 * an earlier moment, `since`: it is charged to the call that is innermost of those that were open then already. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

/* When the next charge of a thread is. */
int64_t charges_next(const struct charges *all, const struct thread *thread)
{
    return thread->charge < thread->charge_end ? all->ts[thread->charge] : NS_NEVER;
}

static struct charged *of_node(struct engine *engine, uint32_t node)
{
    struct charges *all = &engine->charges;
    size_t before = all->capacity;
    if (!room(&all->sum, &all->capacity, (size_t)node + 1, sizeof *all->sum)) {
        engine->error = NO_MEMORY;
        return NULL;
    }
    memset(all->sum + before, 0, (all->capacity - before) * sizeof *all->sum);
    return &all->sum[node];
}

/* What a call owes while its function is not known; NULL: no memory. */
struct charged *charges_owed(struct engine *engine, struct call *call)
{
    struct charges *all = &engine->charges;
    if (!call->owed && all->free) {
        call->owed = all->free;
        all->free = (uint32_t)all->owed[call->owed].of[0];
        all->owed[call->owed] = (struct charged){{0}};
    } else if (!call->owed) {
        all->owing += !all->owing;
        if (!room(&all->owed, &all->owed_capacity, all->owing + 1, sizeof *all->owed)) {
            engine->error = NO_MEMORY;
            return NULL;
        }
        call->owed = (uint32_t)all->owing++;
        all->owed[call->owed] = (struct charged){{0}};
    }
    return &all->owed[call->owed];
}

/* A call ends, which raised the level of its thread to its highest. False: no memory. */
bool charges_raise(struct engine *engine, const struct thread *thread, const struct call *call)
{
    struct charged *sum = of_node(engine, call->node);
    struct call *caller = thread->depth > 1 ? &thread->calls[thread->depth - 2] : NULL;
    if (sum && sum->of[PEAK] < call->highest - call->level)
        sum->of[PEAK] = call->highest - call->level;
    if (caller && caller->highest < call->highest)
        caller->highest = call->highest;
    return sum != NULL;
}

/* A call ends that owes something: its node is known now. False: no memory. */
bool charges_pay(struct engine *engine, struct call *call)
{
    struct charges *all = &engine->charges;
    struct charged *sum = of_node(engine, call->node), *owed = &all->owed[call->owed];
    for (int what = 0; sum && what < CHARGES; what++)
        sum->of[what] += owed->of[what];
    owed->of[0] = all->free;
    all->free = call->owed;
    call->owed = 0;
    return sum != NULL;
}

static struct call *open_since(struct thread *thread, int64_t ns)
{
    size_t depth = thread->depth;
    while (depth && thread->calls[depth - 1].start_ns > ns)
        depth--;
    return depth ? &thread->calls[depth - 1] : NULL;
}

/* Charges what the thread used before the moment `ns`, when its stack changes. Returns when its next charge is. */
int64_t charges_take(struct engine *engine, struct thread *thread, int64_t ns)
{
    const struct charges *all = &engine->charges;
    for (; charges_next(all, thread) < ns; thread->charge++) {
        size_t k = thread->charge;
        struct call *call = thread->depth ? &thread->calls[thread->depth - 1] : NULL;
        if (all->what[k] == LEVEL)
            thread->level += all->amount[k];
        if (all->what[k] == PEAK && call && thread->level + all->amount[k] > call->highest)
            call->highest = thread->level + all->amount[k];
        if (all->what[k] == GONE_SINCE)
            call = open_since(thread, all->since[k]);
        if (thread->phase != WITHIN || !call || all->what[k] >= PEAK)
            continue;
        struct charged *sum = call->func < 0 ? charges_owed(engine, call) : of_node(engine, call->node);
        if (!sum)
            return NS_NEVER;
        sum->of[all->what[k]] += all->amount[k];
    }
    return charges_next(all, thread);
}

/* Charge `count` amounts, by thread (pid << 32 | tid, ascending) and in order of time, instead of those that are left: `what` is at
 * most LEVEL. The arrays have to stay allocated until the next of these calls. Asks for the moments
 * of rebuild_ask() anew. */
OFFERED void rebuild_charge(struct engine *engine, const int64_t *key, const int64_t *ts, const uint8_t *what, const int64_t *amount,
                            const int64_t *since, size_t count)
{
    struct charges *all = &engine->charges;
    all->key = key;
    all->ts = ts;
    all->what = what;
    all->amount = amount;
    all->since = since;
    all->count = count;
    for (size_t k = 0; k < engine->threads; k++)
        moments_open(engine, engine->thread[k]);
}

/* Sets a byte of `left` for each amount that is not charged yet. */
OFFERED void rebuild_uncharged(const struct engine *engine, uint8_t *left)
{
    for (size_t k = 0; k < engine->threads; k++)
        for (size_t place = engine->thread[k]->charge; place < engine->thread[k]->charge_end; place++)
            left[place] = 1;
}

/* The sums of each node (struct charged) so far; returns of how many. */
OFFERED size_t rebuild_charged(const struct engine *engine, const struct charged **sums)
{
    *sums = engine->charges.sum;
    return engine->charges.capacity;
}

void charges_free(struct charges *charges)
{
    free(charges->sum);
    free(charges->owed);
}
