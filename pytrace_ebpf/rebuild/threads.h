/* A thread of a recording. */
#ifndef PYTRACE_THREADS_H
#define PYTRACE_THREADS_H

#include "activations.h"
#include "calls.h"
#include "timeline.h"

struct busy;

/* Of a window and a thread. */
enum phase { WITHIN, BEFORE, AFTER };

struct thread {
    int64_t key; /* pid << 32 | tid */
    uint32_t number;
    enum beginning begins;
    uint32_t passed; /* so many of the losses are behind it */
    int64_t born_ns, died_ns; /* died: -1 not known */
    struct activations open;
    struct call *calls;
    struct stamp *stamps;   /* of the entries of the first `stamped` of `calls` */
    size_t depth, stamped, capacity, stamps_capacity;
    int64_t sequence; /* calls so far */
    /* since the tree began, see rebase.c */
    int64_t kept;      /* `sequence` then */
    struct gone *gone; /* innermost first */
    size_t goners, gone_capacity;
    bool looks_back, is_late;
    struct timeline line;
    struct moment mark; /* FIRST: when the thread began. Else from when on anything may have happened in the next loss */
    struct moment last; /* its last event */
    size_t rows;        /* so many scheduling rows in the segment that is being sorted */
    uint64_t drawn;     /* curve.c: after so many segments of the engine's `draws` */
    uint32_t root;      /* of its tree */
    bool has_root, has_held;
    bool due; /* among the engine's `due` */
    enum phase phase;
    int64_t edge;           /* the next event at or after this moment may cross the window's edge */
    struct moment from, to; /* these edges */
    int64_t entered_before; /* calls that ended before the window */
    size_t asked, asked_end; /* its next moment, see innermost_at.c */
    size_t charge, charge_end; /* and its next charge, see charges.c */
    int64_t level;             /* charges.c */
    int64_t asked_ns;          /* the earlier one of them */
    const struct busy *busy; /* of its process; NULL not known */
    size_t busy_at;          /* the piece of it that its last event lies in */
    int64_t moved_ns;        /* its CPU time when it left the core `moved_from` for another */
    int16_t moved_from;
    size_t ended;     /* slot of the row of a call that ended with the last event; NONE */
    struct row *held; /* the same between two pieces */
};
#define NONE SIZE_MAX
enum { ROWS_OF_SUSPENDED, ROWS, NO_ROWS };

struct thread *engine_thread(struct engine *engine, int32_t pid, int32_t tid);
struct thread *engine_known(const struct engine *engine, int64_t key);

#endif
