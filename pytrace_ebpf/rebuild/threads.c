/* The threads of a recording, by pid and tid: a hash table of their numbers, and what a new one begins as. */
#include <stdlib.h>

#include "rebuild.h"

static bool thread_slots(struct engine *engine)
{
    size_t slots = engine->thread_slots ? engine->thread_slots * 2 : 256;
    uint32_t *slot = calloc(slots, sizeof *slot);
    if (!slot)
        return failed(engine, NO_MEMORY);
    free(engine->thread_slot);
    engine->thread_slot = slot;
    engine->thread_slots = slots;
    for (uint32_t number = 0; number < engine->threads; number++) {
        size_t at = hash((uint64_t)engine->thread[number]->key) >> 20 & (slots - 1);
        while (slot[at])
            at = (at + 1) & (slots - 1);
        slot[at] = number + 1;
    }
    return true;
}

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

/* Its slot or, where it is new, that which it is to have. */
static size_t slot_of(const struct engine *engine, int64_t key)
{
    size_t at = hash((uint64_t)key) >> 20 & (engine->thread_slots - 1);
    while (engine->thread_slot[at] && engine->thread[engine->thread_slot[at] - 1]->key != key)
        at = (at + 1) & (engine->thread_slots - 1);
    return at;
}

/* The thread, NULL where it is new. */
struct thread *engine_known(const struct engine *engine, int64_t key)
{
    uint32_t place = engine->thread_slots ? engine->thread_slot[slot_of(engine, key)] : 0;
    return place ? engine->thread[place - 1] : NULL;
}

/* The thread, which may be new; NULL: no memory. */
struct thread *engine_thread(struct engine *engine, int32_t pid, int32_t tid)
{
    int64_t key = (int64_t)((uint64_t)(uint32_t)pid << 32 | (uint32_t)tid);
    if (engine->threads * 2 >= engine->thread_slots && !thread_slots(engine))
        return NULL;
    size_t at = slot_of(engine, key);
    if (engine->thread_slot[at])
        return engine->thread[engine->thread_slot[at] - 1];
    struct thread *thread = new_thread(engine, key);
    if (thread)
        engine->thread_slot[at] = thread->number + 1;
    else
        engine->error = NO_MEMORY;
    return thread;
}
