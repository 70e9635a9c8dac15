/* Where the time of a thread went: its states (states.c), its switches (timeline.c) or its CPU time alone (curve.c). */
#ifndef PYTRACE_TIMELINE_H
#define PYTRACE_TIMELINE_H

#include "common.h"

/* A scheduling event that changes a thread's state. */
struct change {
    int64_t ts;
    int64_t throttled; /* of the wait in the run queue that it ends, for a CPU quota */
    int16_t cpu; /* -1 unknown */
    uint8_t kind, to;
};

/* From `ts` on the CPU time and the time in the run queue grow by `slope` a ns, from `base`. */
struct knot {
    int64_t ts, base[2];
    double slope[2];
    bool unknown;
};

/* What is known of a thread at a moment. What happened between two moments is the difference of their stamps. */
struct stamp {
    int64_t spent[TIMED]; /* curve: ON_CPU and RUNQ alone */
    int64_t preemptions, waits, migrations, slices, throttled;
    int16_t first_cpu; /* core at the moment, or the first one after it; -1 not seen yet */
    int16_t cpu;       /* core at the moment, or the last one before it; -1 none */
    uint8_t state;
    bool unknown; /* the moment is older than all that is kept */
};

/* A moment that may have to be known later, when the thread has gone on to another state. */
struct moment {
    int64_t ns;
    bool stamped;
    struct stamp stamp;
};

struct timeline {
    struct stamp now; /* at the last switch that was taken */
    int64_t since;    /* when that was */
    int64_t next;     /* when the next one is; NS_NEVER none */
    union {
        struct change *change; /* to take, and of these `old` are from before the newest segment */
        struct knot *knot;
    } queue;
    size_t head, count, old, capacity;
    uint8_t decided; /* state after the last one in the queue */
    int64_t gil_start, gil_end;
    /* curve.c */
    struct knot line;  /* the piece of the curve that `since` began */
    int64_t cputime_ts; /* of the last row of CPU time that is kept; -1 = none */
    int64_t cputime[2];
    double slope_before[2];
    bool has_slope;
};

/* Which columns of a call are known. */
enum known {
    HAS_ON_CPU = 1, HAS_RUNQ = 2, HAS_WAITS = 4, HAS_COUNTS = 8, HAS_SELF_ON_CPU = 16, HAS_SELF_RUNQ = 32, HAS_SELF_WAITS = 64
};

#define OF_TIMES (HAS_ON_CPU | HAS_RUNQ | HAS_WAITS)
/* Of the parts some time is missing that was not reported, and no other: they count as far as they are known. */
#define KNOWN_IN_PART 128

/* Where the time of an interval went. */
struct split {
    int64_t part[PARTS];
    int64_t throttled; /* of the time in the run queue */
    int32_t preemptions, waits, migrations;
    int16_t first_cpu, last_cpu;
    uint8_t known;
};

/* What a call is made of, when it ends. */
struct ended {
    int64_t wall, self[PARTS];
    struct split split;
    int32_t func; /* an entry without a name takes its return's */
    uint8_t known_self; /* enum known: of the first three, and KNOWN_IN_PART */
    uint8_t outermost;
};

struct thread;
struct engine;

/* Columns of schema.SCHED, CPUTIME and EVENTS. */
struct switches {
    const int64_t *ts;
    const int32_t *pid, *tid;
    const int8_t *kind;
    const int16_t *cpu;
    const int32_t *state, *syscall;
    const int64_t *address;
    size_t rows;
};

struct cputimes {
    const int64_t *ts;
    const int32_t *pid, *tid;
    const int64_t *on_cpu, *runq_wait;
    size_t rows;
};

struct events {
    const int64_t *ts;
    const int32_t *pid, *tid;
    const int8_t *kind;
    const int32_t *func;
    const int64_t *frame;
    const int32_t *line;
    size_t rows;
};

/* One row of a thread's, for states_decide. `kind` SCHED_KINDS: from here scheduling is not known, events were lost. */
struct sched_row {
    int64_t ts, address;
    size_t row;
    int32_t state, syscall;
    int16_t cpu;
    uint8_t kind;
};
enum { LOST = SCHED_KINDS, DROPPED = 0xff };

/* By row: which kinds of events (bits 1 << IN and so on) did not come between it and the one that began the state before it, and when that was. */
struct missing {
    uint8_t *what;
    int64_t *since;
};

/* A thread's state that began at `start` turned out to have been another one, by an event of the kind `next` at `end`. */
struct unseen {
    int64_t key, start, end, next;
};

uint8_t states_turned_out(uint8_t state, uint8_t next);
void states_decide(struct sched_row *rows, size_t count, uint8_t known, int64_t gil_start, int64_t gil_end, uint8_t *to, const struct missing *missing);

bool timeline_add(struct timeline *line, const struct sched_row *rows, size_t count, const uint8_t *to);
void timeline_at(const struct timeline *line, int64_t ts, struct stamp *stamp);
void timeline_foresee(const struct timeline *line, int64_t ts, struct stamp *stamp);
void timeline_take(struct engine *engine, struct thread *thread, int64_t ts);
void timeline_forget(struct engine *engine, struct thread *thread);
void timeline_within(const struct timeline *line, int64_t start, int64_t end, struct split *split);
void timeline_between(const struct stamp *came, const struct stamp *went, int64_t wall, struct split *split);

struct cputime {
    int64_t ts, value[2];
};
bool curve_draw(struct thread *thread, const struct cputime *rows, size_t count, int64_t end_ns);
void curve_at(const struct timeline *line, int64_t ts, struct stamp *stamp);
void curve_take(const struct engine *engine, struct thread *thread, int64_t ts);
void curve_within(const struct timeline *line, bool has_queue, int64_t start, int64_t end, struct split *split);
void curve_between(const struct stamp *came, const struct stamp *went, bool has_queue, int64_t wall, struct split *split);

#endif
