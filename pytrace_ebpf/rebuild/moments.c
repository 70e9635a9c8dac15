/* Which call was innermost at moments that somebody asks for: at its start a call is open, at its end only its caller is.
 *
 * The moments lie by thread and in the order of time. Before a thread's calls change, those that have passed are answered. */
#include <stdlib.h>
#include <string.h>

#include "rebuild.h"

/* The moments that are asked for of a thread that is met. */
void moments_open(const struct engine *engine, struct thread *thread)
{
    const struct moments *all = &engine->moments;
    size_t low = 0, high = all->count, first;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (all->key[middle] < thread->key)
            low = middle + 1;
        else
            high = middle;
    }
    first = low;
    for (high = all->count; low < high;) {
        size_t middle = (low + high) / 2;
        if (all->key[middle] <= thread->key)
            low = middle + 1;
        else
            high = middle;
    }
    thread->asked = first;
    thread->asked_end = low;
    thread->asked_ns = first < low ? all->ts[first] : NS_NEVER;
}

/* The thread's calls change at the moment `ns`: until now they were these. */
void moments_answer(struct engine *engine, struct thread *thread, int64_t ns)
{
    const struct moments *all = &engine->moments;
    const struct call *call = thread->depth ? &thread->calls[thread->depth - 1] : NULL;
    for (; thread->asked < thread->asked_end && all->ts[thread->asked] < ns; thread->asked++) {
        all->call_id[thread->asked] = call ? (int64_t)thread->number << THREAD_BITS | call->sequence : -1;
        all->func[thread->asked] = call ? call->func : -1;
    }
    thread->asked_ns = thread->asked < thread->asked_end ? all->ts[thread->asked] : NS_NEVER;
}

/* A call without a name ends, and its end gives the name. */
void moments_name(struct engine *engine, struct thread *thread, const struct call *call, int32_t func)
{
    const struct moments *all = &engine->moments;
    int64_t call_id = (int64_t)thread->number << THREAD_BITS | call->sequence;
    for (size_t k = thread->asked; k-- && all->key[k] == thread->key && all->ts[k] >= call->start_ns;)
        if (all->call_id[k] == call_id)
            all->func[k] = func;
}

/* Ask for `count` moments, by thread (pid << 32 | tid, ascending) and in the order of time; `call_id` and `func` are filled in while
 * events are taken, and have to stay where they are until rebuild_finish(). What is not answered stays as it is. */
OFFERED void rebuild_ask(struct engine *engine, const int64_t *key, const int64_t *ts, size_t count, int64_t *call_id, int32_t *func)
{
    engine->moments = (struct moments){key, ts, count, call_id, func};
    for (size_t k = 0; k < engine->threads; k++)
        moments_open(engine, engine->thread[k]);
}
