/* Which function was on which core. */
#ifndef PYTRACE_CORES_H
#define PYTRACE_CORES_H

#include "common.h"

struct engine;
struct thread;
struct call;
struct ended;
struct stamp;

/* CPU time of all threads of a process together: `total` up to each moment `when`, and `slope` a ns from there on. */
struct busy {
    int64_t pid;
    const int64_t *when, *total, *slope;
    size_t count;
};

/* A straight piece of that: [from, until). */
struct piece {
    int64_t from, until, total, slope;
};

static inline int64_t cores_upto(const struct piece *piece, int64_t ns)
{
    return piece->total + piece->slope * (ns - piece->from);
}

/* CPU time of a function on a core, without the calls below. */
struct on_core {
    int64_t ns;
    int32_t func, cpu;
};

/* Of the outermost calls of a function: their time, and what their process had of the cores meanwhile. */
struct meanwhile {
    int64_t wall, busy;
};

/* Of a call: so much on a core that its thread has left. */
struct slice {
    int64_t ns;
    int32_t cpu;
    uint32_t next;
};

struct cores {
    const struct busy *busy;
    size_t processes;
    struct meanwhile *meanwhile; /* by func_id, of the described functions */
    struct on_core *on;
    uint32_t *last; /* by func_id: the place in `on` plus one that cores_add() found last; 0 none */
    size_t count, capacity;
    uint32_t *slot; /* by hash of function and core: the place in `on` plus one */
    size_t slots;
    struct slice *slice; /* the first is none */
    size_t slices, slice_capacity;
    uint32_t free; /* slices that can be used again */
};

void cores_open(const struct engine *engine, struct thread *thread);
void cores_enter(struct engine *engine, struct thread *thread, struct call *call, struct call *caller, const struct stamp *stamp);
bool cores_note(struct cores *cores, struct call *call, int32_t cpu, int64_t ns);
struct piece cores_piece(struct thread *thread, int64_t ns);
bool cores_add(struct engine *engine, int32_t func, int32_t cpu, int64_t own);
void cores_meanwhile(struct cores *cores, int32_t func, int64_t wall, int64_t busy);
bool cores_leave(struct engine *engine, struct thread *thread, const struct call *call, int64_t ns, const struct ended *ended);
void cores_left(struct engine *engine, struct thread *thread);
void cores_forget(struct engine *engine, struct call *call);
void cores_free(struct cores *cores);

#endif
