/* Which call was innermost at given moments: at its start a call counts as open, at its end only its caller does. And, where that is of
 * a function of a library, which function of it the program called, and from which of its own; and which function of the program's own code
 * is innermost.
 *
 * The moments lie by thread and in the order of time. Before a thread's calls change, those that have passed are answered. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

/* The places of those of `count` ordered keys that are `key`. */
void moments_of(const int64_t *keys, size_t count, int64_t key, size_t *begin, size_t *end)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    *begin = low;
    for (high = count; low < high;) {
        size_t middle = (low + high) / 2;
        if (keys[middle] <= key)
            low = middle + 1;
        else
            high = middle;
    }
    *end = low;
}

/* Go to the next moment that has no answer yet. Returns when that is. */
static int64_t next(const struct moments *all, struct thread *thread)
{
    while (thread->asked < thread->asked_end && all->call_id[thread->asked] != NO_ANSWER)
        thread->asked++;
    return thread->asked < thread->asked_end ? all->ts[thread->asked] : NS_NEVER;
}

/* Finds the given moments that are of a thread, and when the first of them and of its charges is. */
void moments_open(const struct engine *engine, struct thread *thread)
{
    moments_of(engine->moments.key, engine->moments.count, thread->key, &thread->asked, &thread->asked_end);
    moments_of(engine->charges.key, engine->charges.count, thread->key, &thread->charge, &thread->charge_end);
    int64_t charged_ns = charges_next(&engine->charges, thread);
    thread->asked_ns = next(&engine->moments, thread);
    if (charged_ns < thread->asked_ns)
        thread->asked_ns = charged_ns;
}

static bool is_of(const struct moments *all, int32_t func, enum library what)
{
    return func >= 0 && (size_t)func < all->functions && all->library[func] & what;
}

/* How many calls there are from the outermost one to the innermost of the program's own code; 0 where there is none since an event loop's. */
static size_t own_code(const struct moments *all, const struct thread *thread)
{
    size_t depth = thread->depth;
    for (; depth && is_of(all, thread->calls[depth - 1].func, FOREIGN); depth--)
        if (is_of(all, thread->calls[depth - 1].func, EVENT_LOOP))
            return 0;
    return depth;
}

/* The thread's stack changes at the moment `ns`: answers the moments before it, and charges what was used before it. */
void moments_answer(struct engine *engine, struct thread *thread, int64_t ns)
{
    const struct moments *all = &engine->moments;
    const struct call *call = thread->depth ? &thread->calls[thread->depth - 1] : NULL;
    size_t within = thread->depth; /* the calls from here on are of the library */
    while (within && is_of(all, thread->calls[within - 1].func, LIBRARY))
        within--;
    size_t own = next(all, thread) < ns ? own_code(all, thread) : 0;
    const struct call *called = own && own < thread->depth ? &thread->calls[own] : NULL; /* by it */
    int64_t asked_ns;
    for (; (asked_ns = next(all, thread)) < ns; thread->asked++) {
        all->call_id[thread->asked] = call ? (int64_t)thread->number << THREAD_BITS | call->sequence : -1;
        all->func[thread->asked] = !call ? -1 : call->func < 0 ? NO_ANSWER : call->func;
        all->entry[thread->asked] = within < thread->depth ? thread->calls[within].func : -1;
        all->caller[thread->asked] = within ? thread->calls[within - 1].func : -1;
        all->own[thread->asked] = own ? thread->calls[own - 1].func : -1;
        all->own_line[thread->asked] = called ? called->line : -1;
        all->own_called[thread->asked] = called ? called->func : -1;
    }
    int64_t charged_ns = charges_take(engine, thread, ns);
    thread->asked_ns = asked_ns < charged_ns ? asked_ns : charged_ns;
}

/* A call whose entry did not name its function has ended, and its end may. */
void moments_name(struct engine *engine, struct thread *thread, const struct call *call, int32_t func)
{
    const struct moments *all = &engine->moments;
    int64_t call_id = (int64_t)thread->number << THREAD_BITS | call->sequence;
    for (size_t k = thread->asked; k-- && all->key[k] == thread->key && all->ts[k] >= call->start_ns;)
        if (all->call_id[k] == call_id)
            all->func[k] = func;
}

/* Ask for `count` moments, by thread (pid << 32 | tid, ascending) and in order of time, instead of those that were asked for before. Filled
 * in while events are taken: the innermost call and its function; the outermost of the functions of the library (`library`: enum library of
 * each of `functions`) that it is in, and the one that called that; the innermost function of the program's own code, the line of it that
 * called what is not, and the function which that is; -1 each for none. NO_ANSWER, which the caller sets all to where it has none yet, stays where it is not known so far, and in `func` also until a call that its entry did not name has ended. All arrays
 * have to stay allocated until rebuild_finish() or the next of these calls. */
OFFERED void rebuild_ask(struct engine *engine, const int64_t *key, const int64_t *ts, size_t count, const uint8_t *library, size_t functions,
                         int64_t *call_id, int32_t *func, int32_t *entry, int32_t *caller, int32_t *own, int32_t *own_line, int32_t *own_called)
{
    engine->moments = (struct moments){key, ts, count, library, functions, call_id, func, entry, caller, own, own_line, own_called};
    for (size_t k = 0; k < engine->threads; k++)
        moments_open(engine, engine->thread[k]);
}

/* Answer the moments before `ns`, and charge what was used before, by the calls that are open now, whatever is still to come. */
OFFERED void rebuild_settle(struct engine *engine, int64_t ns)
{
    for (size_t k = 0; k < engine->threads; k++)
        if (is_own(engine, engine->thread[k]) && (!engine->charges.count || window_enter(engine, engine->thread[k], ns)))
            moments_answer(engine, engine->thread[k], ns);
}
