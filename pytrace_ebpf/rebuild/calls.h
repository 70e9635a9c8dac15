/* The stack of open calls. */
#ifndef PYTRACE_CALLS_H
#define PYTRACE_CALLS_H

#include "timeline.h"

struct engine;
struct thread;
struct row;

#define NOTHING_BELOW 8 /* of some child not even the parts are known that were reported */
#define OF_BELOW (OF_TIMES | NOTHING_BELOW)

struct call {
    int64_t start_ns, sequence, frame;
    int64_t children_wall, children[PARTS];
    uint32_t slot, piece; /* of its row, where `piece` is the engine's */
    int32_t func;
    int32_t line; /* of its caller's; -1 not known */
    uint32_t node, site;
    uint32_t newest; /* node of the call that it made last; 0 none */
    uint8_t flags, unknown_below; /* enum known: what some child does not know; four bits up, one that this tree has only the end of; NOTHING_BELOW */
    uint8_t outermost;            /* 1: of its function, 2: of its module */
    uint8_t outermost_of_site;
    /* cores.c */
    int64_t level, highest; /* charges.c: of its thread, at its entry and since */
    uint32_t owed;   /* charges.c: what it used while its function is not known; 0 none */
    uint32_t slices; /* what it had of cores that its thread has left since; 0 none */
    int64_t busy_ns; /* of its process up to its entry */
};

/* A call that was open when the tree began, and has ended since. */
struct gone {
    int64_t end_ns, children_wall, children[PARTS]; /* as of the call */
    struct stamp went;
    int32_t func;
    uint8_t outermost, outermost_of_site, unknown_below;
};

/* A moment of a thread: now, or one that was stamped. */
struct when {
    int64_t ns;
    const struct stamp *stamp; /* NULL: no switch was taken since */
};

/* How an end was reported; `line`, `func`, `frame` of an end that was not are -1, -1 and 0. */
struct end {
    int64_t frame;
    int32_t func, line;
    uint8_t flags;
};

/* `line`: that it was called from, -1 unknown. */
size_t fast_path(struct engine *engine, struct thread *thread, size_t row, size_t end); /* fast_path.c */
bool calls_enter(struct engine *engine, struct thread *thread, struct when when, int32_t func, int32_t line, int64_t frame, uint8_t flags);
bool calls_leave(struct engine *engine, struct thread *thread, struct when when, const struct end *end);
bool calls_stamp(struct engine *engine, struct thread *thread);
void calls_got_core(struct thread *thread);
void calls_begin(struct engine *engine, struct thread *thread);
void calls_pause(struct engine *engine, struct thread *thread);
bool calls_take(struct engine *engine, struct thread *thread, int64_t ts);
void calls_stamp_at(const struct engine *engine, const struct timeline *line, int64_t ts, struct stamp *stamp);
bool calls_plant(struct engine *engine, struct thread *thread);
bool calls_place(struct engine *engine, struct thread *thread);
bool calls_site(struct engine *engine, const struct call *caller, int32_t line, int32_t func, uint32_t *site);
uint8_t calls_unknown(const struct split *split);
void calls_own(const struct call *call, struct ended *ended);

#endif
