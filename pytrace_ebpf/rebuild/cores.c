/* Which function was on which core, and how busy its process was meanwhile.
 *
 * A call's own CPU time belongs to the core that its thread has when it ends, but for what it had on cores that the thread has
 * left: when that happens, what each open call has spent itself since the last time is noted for it, which is little: of most
 * it is nothing. It counts when the call ends, if all of its CPU time is known then. Memory is bounded by open calls and cores. */
#include <stdlib.h>

#include "engine.h"

#define FEW 256

/* --- how busy a process is --- */

void cores_open(const struct engine *engine, struct thread *thread)
{
    thread->busy = NULL;
    thread->busy_at = 0;
    for (size_t k = 0; k < engine->cores.processes; k++)
        if (engine->cores.busy[k].pid == thread->key >> 32)
            thread->busy = &engine->cores.busy[k];
}

/* The piece of its process's curve that `ns` lies on, which is near what was asked last. */
struct piece cores_piece(struct thread *thread, int64_t ns)
{
    const struct busy *busy = thread->busy;
    if (!busy || !busy->count)
        return (struct piece){.from = INT64_MIN, .until = NS_NEVER};
    if (ns < busy->when[0])
        return (struct piece){.from = INT64_MIN, .until = busy->when[0], .total = busy->total[0]};
    size_t at = thread->busy_at;
    while (at + 1 < busy->count && busy->when[at + 1] <= ns)
        at++;
    while (busy->when[at] > ns)
        at--;
    thread->busy_at = at;
    int64_t until = at + 1 < busy->count ? busy->when[at + 1] : NS_NEVER;
    return (struct piece){.from = busy->when[at], .until = until, .total = busy->total[at], .slope = busy->slope[at]};
}

static int64_t busy_upto(struct thread *thread, int64_t ns)
{
    struct piece piece = cores_piece(thread, ns);
    return cores_upto(&piece, ns);
}

/* --- cells --- */

static bool more_slots(struct cores *cores)
{
    size_t slots = cores->slots ? cores->slots * 2 : FEW;
    uint32_t *slot = calloc(slots, sizeof *slot);
    if (!slot)
        return false;
    free(cores->slot);
    cores->slot = slot;
    cores->slots = slots;
    for (uint32_t k = 0; k < cores->count; k++) {
        size_t at = hash((uint64_t)(uint32_t)cores->on[k].func << 32 | (uint32_t)cores->on[k].cpu) >> 20 & (slots - 1);
        while (slot[at])
            at = (at + 1) & (slots - 1);
        slot[at] = k + 1;
    }
    return true;
}

static struct on_core *cell_of(struct cores *cores, int32_t func, int32_t cpu)
{
    if (cores->count * 2 >= cores->slots && !more_slots(cores))
        return NULL;
    size_t at = hash((uint64_t)(uint32_t)func << 32 | (uint32_t)cpu) >> 20 & (cores->slots - 1);
    for (; cores->slot[at]; at = (at + 1) & (cores->slots - 1)) {
        struct on_core *on = &cores->on[cores->slot[at] - 1];
        if (on->func == func && on->cpu == cpu)
            return on;
    }
    if (cores->count >= UINT32_MAX / 2 || !room(&cores->on, &cores->capacity, cores->count + 1, sizeof *cores->on))
        return NULL;
    struct on_core *fresh = &cores->on[cores->count++];
    *fresh = (struct on_core){.func = func, .cpu = cpu};
    cores->slot[at] = (uint32_t)cores->count;
    return fresh;
}

static bool add(struct cores *cores, int32_t func, int32_t cpu, int64_t ns)
{
    struct on_core *on = cell_of(cores, func, cpu);
    return on && (on->ns += ns, true);
}

/* --- calls --- */

bool cores_note(struct cores *cores, struct call *call, int32_t cpu, int64_t ns)
{
    for (uint32_t k = call->slices; k; k = cores->slice[k].next)
        if (cores->slice[k].cpu == cpu)
            return cores->slice[k].ns += ns, true;
    uint32_t fresh = cores->free;
    if (fresh) {
        cores->free = cores->slice[fresh].next;
    } else {
        size_t wanted = cores->slices ? cores->slices + 1 : 2;
        if (wanted >= UINT32_MAX || !room(&cores->slice, &cores->slice_capacity, wanted, sizeof *cores->slice))
            return false;
        fresh = (uint32_t)wanted - 1;
        cores->slices = wanted;
    }
    cores->slice[fresh] = (struct slice){.ns = ns, .cpu = cpu, .next = call->slices};
    call->slices = fresh;
    return true;
}

static int64_t noted(const struct cores *cores, const struct call *call)
{
    int64_t ns = 0;
    for (uint32_t k = call->slices; k; k = cores->slice[k].next)
        ns += cores->slice[k].ns;
    return ns;
}

/* A call is entered, at a `stamp` where that is in the past: what came before the thread left a core is not its caller's any more.
 * Where it left several since, all of that counts for the last of them. */
void cores_enter(struct engine *engine, struct thread *thread, struct call *call, struct call *caller, const struct stamp *stamp)
{
    if (call->outermost & 1)
        call->busy_ns = busy_upto(thread, call->start_ns);
    if (!stamp || stamp->unknown || thread->moved_ns <= stamp->spent[ON_CPU])
        return;
    int64_t ns = thread->moved_ns - stamp->spent[ON_CPU];
    bool fine = cores_note(&engine->cores, call, thread->moved_from, ns);
    if (!fine || (caller && !cores_note(&engine->cores, caller, thread->moved_from, -ns)))
        engine->error = NO_MEMORY;
}

/* The thread comes back on another core than that of its last stamp; all that is open is stamped. */
void cores_left(struct engine *engine, struct thread *thread)
{
    const struct stamp *now = &thread->line.now;
    int64_t below = 0;
    thread->moved_ns = now->spent[ON_CPU];
    thread->moved_from = now->cpu;
    for (size_t k = thread->stamped; k--;) {
        const struct stamp *came = &thread->stamps[k];
        struct call *call = &thread->calls[k];
        int64_t spent = now->spent[ON_CPU] - came->spent[ON_CPU];
        int64_t own = spent - call->children[ON_CPU] - below - noted(&engine->cores, call);
        if (own && !came->unknown && !cores_note(&engine->cores, call, now->cpu, own))
            engine->error = NO_MEMORY;
        below = spent;
    }
}

void cores_forget(struct engine *engine, struct call *call)
{
    struct cores *cores = &engine->cores;
    while (call->slices) {
        uint32_t next = cores->slice[call->slices].next;
        cores->slice[call->slices].next = cores->free;
        cores->free = call->slices;
        call->slices = next;
    }
}

/* A call of `func`, one that is described, has ended: it had `own` ns of the core `cpu` that was not noted before. */
bool cores_add(struct engine *engine, int32_t func, int32_t cpu, int64_t own)
{
    struct cores *cores = &engine->cores;
    uint32_t last = cores->last[func];
    if (!last || cores->on[last - 1].cpu != cpu) {
        struct on_core *on = cell_of(cores, func, cpu);
        if (!on)
            return failed(engine, NO_MEMORY);
        last = cores->last[func] = (uint32_t)(on - cores->on) + 1;
    }
    cores->on[last - 1].ns += own;
    return true;
}

/* It was the outermost one of its function, and its process had `busy` ns of the cores meanwhile. */
void cores_meanwhile(struct cores *cores, int32_t func, int64_t wall, int64_t busy)
{
    cores->meanwhile[func].wall += wall;
    cores->meanwhile[func].busy += busy;
}

/* A call of the thread ends at `ns`. */
bool cores_leave(struct engine *engine, struct thread *thread, const struct call *call, int64_t ns, const struct ended *ended)
{
    struct cores *cores = &engine->cores;
    struct call copy = *call;
    bool counts = thread->phase == WITHIN && ended->known_self & HAS_ON_CPU && ended->split.first_cpu >= 0, fine = true;
    if (counts) {
        for (uint32_t k = call->slices; fine && k; k = cores->slice[k].next)
            fine = add(cores, ended->func, cores->slice[k].cpu, cores->slice[k].ns);
        fine = fine && add(cores, ended->func, ended->split.last_cpu, ended->self[ON_CPU] - noted(cores, call));
    }
    if (counts && ended->outermost & 1 && ended->func >= 0 && (uint32_t)ended->func < engine->functions)
        cores_meanwhile(cores, ended->func, ended->wall, busy_upto(thread, ns) - call->busy_ns);
    cores_forget(engine, &copy);
    return fine || (engine->error = NO_MEMORY, false);
}

void cores_free(struct cores *cores)
{
    free(cores->meanwhile);
    free(cores->last);
    free(cores->on);
    free(cores->slot);
    free(cores->slice);
}

/* From here on, find out. `busy`: of each process, by which a call's is known; it has to stay where it is until the next of these calls. After
 * rebuild_functions(), before anything is taken; again, with what continues `busy`, between two segments. */
OFFERED bool rebuild_want_cores(struct engine *engine, const struct busy *busy, size_t processes)
{
    struct cores *cores = &engine->cores;
    if (!engine->module || engine->by_cputime)
        return engine->error = STRANGE_STATE, false;
    if (!cores->meanwhile && !(cores->meanwhile = calloc((size_t)engine->functions + 1, sizeof *cores->meanwhile)))
        return failed(engine, NO_MEMORY);
    if (!cores->last && !(cores->last = calloc((size_t)engine->functions + 1, sizeof *cores->last)))
        return failed(engine, NO_MEMORY);
    cores->busy = busy;
    cores->processes = processes;
    for (size_t k = 0; k < engine->threads; k++)
        cores_open(engine, engine->thread[k]);
    engine->wants_cores = true;
    return true;
}

/* What was found; returns how many there are. `meanwhile`: by func_id. */
OFFERED size_t rebuild_cores(const struct engine *engine, const struct on_core **on, const struct meanwhile **meanwhile)
{
    *on = engine->cores.on;
    *meanwhile = engine->cores.meanwhile;
    return engine->cores.count;
}
