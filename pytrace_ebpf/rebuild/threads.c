/* The threads of a recording, by pid and tid, and what a new one begins as. */
#include <stdlib.h>

#include "engine.h"

static const struct process *process_of(const struct engine *engine, int32_t pid)
{
    static const struct process unknown;
    for (size_t k = 0; k < engine->processes; k++)
        if (engine->process[k].pid == pid)
            return &engine->process[k];
    return &unknown;
}

static struct thread *new_thread(struct engine *engine, int64_t key)
{
    if (engine->threads >= (1u << 22) || !room(&engine->thread, &engine->thread_capacity, engine->threads + 1, sizeof *engine->thread))
        return NULL;
    struct thread *thread = calloc(1, sizeof *thread);
    if (!thread)
        return NULL;
    const struct process *process = process_of(engine, (int32_t)(key >> 32));
    thread->key = key;
    thread->number = (uint32_t)engine->threads;
    thread->begins = FIRST;
    thread->died_ns = -1;
    thread->ended = NONE;
    thread->drawn = engine->draws;
    thread->mark.ns = process->start_ns > engine->start_ns ? process->start_ns : engine->start_ns;
    thread->last = (struct moment){.ns = -1, .stamped = true, .stamp = {.unknown = true, .first_cpu = -1, .cpu = -1}};
    struct timeline *line = &thread->line;
    line->now.state = line->decided = UNKNOWN;
    line->now.cpu = line->now.first_cpu = -1;
    line->since = engine->start_ns;
    line->next = NS_NEVER;
    line->gil_start = process->gil_start;
    line->gil_end = process->gil_end;
    line->line.unknown = true;
    line->cputime_ts = -1;
    window_open(engine, thread);
    moments_open(engine, thread);
    cores_open(engine, thread);
    engine->thread[engine->threads++] = thread;
    return thread;
}

/* The thread, NULL where it is new. */
struct thread *engine_known(const struct engine *engine, int64_t key)
{
    uint32_t number = places_find(&engine->numbers, key);
    return number != NO_PLACE ? engine->thread[number] : NULL;
}

/* The thread, which may be new; NULL: no memory. */
struct thread *engine_thread(struct engine *engine, int32_t pid, int32_t tid)
{
    int64_t key = key_of(pid, tid);
    struct thread *thread = engine_known(engine, key);
    if (!thread && (!(thread = new_thread(engine, key)) || !places_put(&engine->numbers, key, thread->number))) {
        engine->error = NO_MEMORY;
        return NULL;
    }
    return thread;
}
