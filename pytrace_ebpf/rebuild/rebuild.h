/* Rebuilds calls from function events and scheduling: one stack machine per thread.
 *
 * Where a number of a call comes from:
 *
 *     activations.c  which open call an event ends or begins, and how missing events are made up for
 *     states.c       what state a thread is in after each of its scheduling events
 *     timeline.c     where the time between two moments of a thread went, by its switches
 *     curve.c        the same where only its CPU time is known
 *     calls.c        the stack of open calls: the sums of a call, without its children's too
 *     rows.c         calls as columns
 *     tree.c         calls as sums by context: the calling-context tree
 *     sites.c        calls as sums by where they were called from
 *     lines.c        lines as sums
 *     window.c       a window of the recording: the part of each call that lies within it
 *     innermost_at.c      the innermost call at moments that are asked for
 *     charges.c      what is charged to calls: page faults, bytes
 *     cores.c        which function was on which core
 *     edges.c        begins and ends as they happen
 *     written.c      these as a file has them
 *     paths.c        the paths that they come to
 *     events.c       the order in which events are processed, and what a loss of some does to it
 *     fast_path.c        the same for most events, where nothing else happens, faster
 *     scheduling.c   a segment's scheduling by thread
 *     threads.c      the threads of a recording
 *     places.c       where something of a thread lies
 *     engine.c       what an engine is given and asked for: exported functions
 *     checkpoint.c   all of this as bytes, between two segments
 *     rebase.c       the same once the trace's beginning is gone
 *     gil_handoffs.c         which events show that the GIL went from one thread to another
 *     stacks.c       which calls are open, and no more: for the recorder
 *     triggers.c     whether something happened that a recording waits for, for the recorder
 *     decode.c       an agent's events, for the recorder
 *     values.c       an agent's values, for the recorder
 *     objects.c      values that BPF read, for the recorder
 *     unwind.c       how to get from a native function to its caller, for the recorder
 *     pages.c        columns as Parquet has them, for the recorder
 *
 * What a trace holds is not trusted: any numbers may come. A time before the thread's last one counts as that one, indices are
 * checked, sums wrap (the library is compiled with -fwrapv), and memory is bounded by the open calls and by one segment.
 * A function that returns bool returns false where memory ran out; the engine cannot be used any further then. */
#ifndef PYTRACE_REBUILD_H
#define PYTRACE_REBUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OFFERED __attribute__((visibility("default")))
#define NS_NEVER INT64_MAX
#define PYTHON 0 /* layer of its functions, as in trace/layers.py */
#define THREAD_BITS 40 /* of a call_id above them, below a call's place on its thread */

/* events.kind and sched.kind, as in trace/schema.py */
enum { ENTRY, RETURN, OPEN, RESET, UNWIND, RESUME, YIELD, LINE, STANDS, CALL_KINDS };
enum { IN, OUT, WAKING, MIGRATE, FORK, EXEC, EXIT, SNAPSHOT, SCHED_KINDS };

/* The states of a thread that are the parts of a call's time, as in trace/states.py: number, column, with which it is known
 * (enum known). Which one a thread is in states.c decides. */
#define STATES(STATE) \
    STATE(ON_CPU, on_cpu, HAS_ON_CPU) STATE(RUNQ, runq_wait, HAS_RUNQ) STATE(GIL, gil_wait, HAS_WAITS) STATE(BLOCKED, blocked, HAS_WAITS)

/* OFF: without a core, and not recorded why (source perf). Where the kernel did not report an event: READY, it had a core or waited for one; SLEPT, it was
 * blocked and from some moment on waited for a core; UNSEEN, any of these. */
enum {
#define STATE(number, name, known) number,
    STATES(STATE)
#undef STATE
    OFF, UNKNOWN, READY, SLEPT, UNSEEN, GONE, PARTS = OFF, TIMED = GONE
};

/* Of a call: those of its entry and of its end. OF_LINE: it is none but the time at a line, see lines.c. */
enum { OPEN_AT_END = 1, OPEN_AT_START = 2, UNWOUND = 4, REPAIRED = 8, IN_LOSS = 16, RESUMED = 32, YIELDED = 64, OF_LINE = 128 };

enum rebuild_error { FINE, NO_MEMORY, STRANGE_KIND, STRANGE_STATE };

/* --- activations.c --- */

/* How a thread's rows begin: after others; its very first; first after a loss. In the last two some may be of calls entered before. */
enum beginning { SETTLED, FIRST, AFTER_LOSS };

enum does { NOTHING, ENTERS, LEAVES, ORPHAN, LEAVES_OLDER, RESETS, IS_AT };

/* What an event does to the open calls: it ends `closes` of them whose returns were not reported, then `does`. */
struct step {
    uint32_t closes;
    uint32_t does; /* enum does; ORPHAN: a call of which only the return was recorded; IS_AT: the innermost call is at a line */
};

/* The frames of a thread's open calls, outermost first; 0 = unknown. */
struct activations {
    int64_t *frame;
    uint32_t *before; /* of the same hash: the place in `frame` plus one of the one entered before it, 0 none */
    uint32_t *newest; /* by hash: the place plus one of the one entered last */
    uint32_t count, capacity, bits;
    /* while looking ahead, see activations.c */
    uint32_t base;
    bool base_returned;
    enum beginning begins;
    uint32_t ended_before, entered_before;
};

/* A set of frames. */
struct frames {
    int64_t *slot;
    size_t count, capacity;
};

bool activations_take(struct activations *open, struct frames *seen, int kind, int64_t frame, struct step *step);
bool activations_look_ahead(struct activations *open, enum beginning begins, struct frames *seen);
void activations_free(struct activations *open);
bool activations_push(struct activations *open, int64_t frame);

/* --- states.c, timeline.c, curve.c --- */

/* A scheduling event that changes a thread's state. */
struct change {
    int64_t ts;
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
    int64_t preemptions, waits, migrations, slices;
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

/* --- calls.c --- */

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

struct row;

/* A call that was open when the tree began, and has ended since. */
struct gone {
    int64_t end_ns, children_wall, children[PARTS]; /* as of the call */
    struct stamp went;
    int32_t func;
    uint8_t outermost, outermost_of_site, unknown_below;
};

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

/* --- window.c, innermost_at.c --- */

void window_open(const struct engine *engine, struct thread *thread);
void window_stamp(const struct engine *engine, struct thread *thread, int64_t ts);
bool window_enter(struct engine *engine, struct thread *thread, int64_t ns);
bool window_cross(struct engine *engine, struct thread *thread, int64_t ns, bool enters);
bool window_end(struct engine *engine, struct thread *thread, int64_t ns);

#define NO_ANSWER (-2)

struct moments {
    const int64_t *key, *ts;
    size_t count;
    const uint8_t *library; /* by function: whether it is one that others wait through */
    size_t functions;
    int64_t *call_id;
    int32_t *func, *entry, *caller;
};

void moments_of(const int64_t *keys, size_t count, int64_t key, size_t *begin, size_t *end);
void moments_open(const struct engine *engine, struct thread *thread);
void moments_answer(struct engine *engine, struct thread *thread, int64_t ns);
void moments_name(struct engine *engine, struct thread *thread, const struct call *call, int32_t func);

/* --- charges.c --- */

#define CHARGES 10   /* kinds of amounts that are kept */
#define GONE_SINCE 8
#define PEAK 9       /* the last of them */
#define LEVEL 10

struct charged {
    int64_t of[CHARGES];
};

struct charges {
    const int64_t *key, *ts, *amount, *since;
    const uint8_t *what;
    size_t count;
    struct charged *sum; /* by node */
    size_t capacity;
    struct charged *owed; /* of calls that their entries did not name, whose node their ends may change; the first is none */
    size_t owing, owed_capacity;
    uint32_t free; /* places in it that can be used again */
};

int64_t charges_next(const struct charges *all, const struct thread *thread);
int64_t charges_take(struct engine *engine, struct thread *thread, int64_t ns);
bool charges_raise(struct engine *engine, const struct thread *thread, const struct call *call);
bool charges_pay(struct engine *engine, struct call *call);
struct charged *charges_owed(struct engine *engine, struct call *call);
void charges_free(struct charges *charges);

/* --- cores.c --- */

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

/* --- rows.c --- */

#define OF_CALL(number, name, known) X(int64_t, name##_ns)
#define OF_SELF(number, name, known) X(int64_t, self_##name##_ns)

/* Columns of a row: type and name. What of them is null stands in `known` (enum known), and -1 in the cores. */
#define ROW(X) \
    X(int64_t, call_id) X(int64_t, parent_id) X(int64_t, last_descendant_id) X(int64_t, next_sibling_id) X(int32_t, depth) \
    X(int32_t, layer) X(int32_t, pid) X(int32_t, tid) X(int32_t, func_id) X(int64_t, start_ns) X(int64_t, end_ns) \
    X(int64_t, wall_ns) STATES(OF_CALL) X(int64_t, self_wall_ns) STATES(OF_SELF) X(int16_t, first_cpu) X(int16_t, last_cpu) X(int32_t, migrations) X(int32_t, preemptions) \
    X(int32_t, waits) X(int64_t, frame) X(uint8_t, outermost) X(uint8_t, flags) X(int32_t, line) X(int32_t, call_line) X(int32_t, status) \
    X(uint8_t, known)

struct row {
#define X(type, name) type name;
    ROW(X)
#undef X
};

struct rows {
    uint8_t *filled;
#define X(type, name) type *name;
    ROW(X)
#undef X
    size_t count, capacity;
};

bool rows_slot(struct rows *rows, size_t *slot);
void rows_put(struct rows *rows, size_t slot, const struct row *row);
void rows_get(const struct rows *rows, size_t slot, struct row *row);
void rows_pack(struct rows *rows);
void rows_free(struct rows *rows);

/* --- edges.c --- */

struct edge {
    int64_t ts;
    int32_t func;
    uint32_t thread;
};
#define ENDS (-2)

struct edges {
    struct edge *edge;
    size_t count, capacity;
};

bool edges_add(struct engine *engine, const struct thread *thread, int64_t ns, int32_t func);

/* --- tree.c --- */

/* `unknown`, `unsplit_...`: calls of which the scheduling, or only how the time off a core splits into these waits, is not known. */
struct sums {
    int64_t wall, part[PARTS], unknown_wall, unknown, unsplit_runq, unsplit_waits;
};

struct node {
    uint32_t parent, thread; /* thread: of a thread's root; else NO_THREAD */
    int32_t func, depth;     /* depth: of its calls; -1 of a thread's root, whose total is that of its outermost calls */
    uint32_t follows[2];     /* when that happened last: what its parent entered after it, and its first child; 0 none */
    uint32_t site;           /* of the last call */
    uint8_t outermost;       /* as of a call */
    int64_t calls;
    struct sums total, self;
};

#define NO_THREAD UINT32_MAX

struct tree {
    struct node *node; /* the first is the root of all */
    size_t count, capacity, most;
    uint64_t *slot; /* by hash of parent, function and `outermost`: 32 bits of it, and the node's number */
    size_t slots;
};

bool tree_root(struct tree *tree, uint32_t thread, uint32_t *node);
bool tree_child(struct tree *tree, uint32_t parent, int32_t func, uint8_t outermost, uint32_t *newest, uint32_t *node);
void tree_free(struct tree *tree);
void sums_merge(struct sums *sums, const struct sums *more);

/* --- sites.c --- */

/* Where calls come from: the calling function, -1 none or unknown, and its line, -1 unknown; and the function called, -1 unknown. */
struct site {
    int32_t caller, line, func;
    uint32_t open; /* calls of the thread at hand */
    int64_t calls;
    struct sums total; /* of those that no other call of the site was open at */
    int64_t self_wall;
};

struct sites {
    struct site *site;
    size_t count, capacity;
    uint32_t *slot; /* by hash: the number plus one */
    size_t slots;
};

bool sites_find(struct sites *sites, int32_t caller, int32_t line, int32_t func, uint32_t *number);
void sites_begin_anew(struct sites *sites);
void sites_free(struct sites *sites);

/* --- lines.c --- */

#define NOT_SEEN (OF_LINE | REPAIRED) /* call.flags: the line was not reported; it is where the call was then */

/* Sites whose caller is a function and whose line is its own; nothing is called. */
struct lines {
    struct sites at;
    struct sums *self; /* by the site's number */
    const int32_t *first_line; /* by func_id, of the described functions */
    uint8_t *lined; /* likewise: whether lines of it were reported */
    size_t capacity;
};

bool lines_begin(struct engine *engine, struct thread *thread, struct when when, int32_t func, bool entered);
bool lines_come_to(struct engine *engine, struct thread *thread, struct when when, int32_t line, int kind);
bool lines_end(struct engine *engine, struct thread *thread, struct when when);
void lines_add(struct engine *engine, const struct thread *thread, const struct call *call, const struct ended *ended);
bool lines_place(struct engine *engine, struct call *call);
void lines_free(struct lines *lines);
void sums_add(struct sums *sums, int64_t wall, const int64_t part[PARTS], uint8_t known);

/* --- places.c --- */

#define NO_PLACE UINT32_MAX

struct placed {
    int64_t key;
    uint32_t after; /* the place plus one; 0: the slot is free */
};

struct places {
    struct placed *slot;
    size_t slots, count;
};

static inline int64_t key_of(int32_t pid, int32_t tid)
{
    return (int64_t)((uint64_t)(uint32_t)pid << 32 | (uint32_t)tid);
}

uint32_t places_find(const struct places *all, int64_t key);
bool places_put(struct places *all, int64_t key, uint32_t place);
void places_clear(struct places *all);

/* --- engine.c --- */

struct process {
    int32_t pid;
    int64_t start_ns, gil_start, gil_end;
};

struct window {
    int64_t start, end;
};

struct engine {
    enum rebuild_error error;
    int64_t start_ns;
    int64_t end_ns;   /* of the segment at hand */
    int64_t began_ns; /* start_ns of the engine whose state this one goes on from */
    int64_t tree_ns;  /* end_ns when the tree began */
    bool by_cputime, has_queue, wants_rows, wants_tree, wants_edges, wants_cores, wants_lines;
    bool has_call_lines; /* the line of an entry is that of its caller */
    bool met_unknown; /* a function that was not described */
    uint8_t *row_of; /* by function, of ROWS_OF_SUSPENDED...: whether its calls have rows; NULL: all have */
    bool rows_of_suspended; /* as do those that yielded or were resumed */
    /* of the trace */
    struct window *losses, *blind; /* of function events and of scheduling, disjoint and in the order of time */
    size_t loss_count, blind_count, blind_passed;
    struct unseen *unseen;
    size_t unseen_count;
    size_t passed, passed_before; /* losses that ended before the end of this segment, and of the one before */
    struct process *process;
    size_t processes;
    int32_t *layer, *module; /* of each function, and one more for those unknown */
    uint32_t *open_of_function, *open_of_module; /* of the thread at hand: how many calls are open */
    uint32_t functions, modules;
    struct thread **thread;
    size_t threads, thread_capacity;
    struct places numbers; /* of threads */
    struct thread **due; /* threads that the next segment's scheduling concerns even if they have no rows in it */
    size_t dues, due_capacity;
    uint64_t draws; /* segments of CPU time so far, and the start of the last one */
    int64_t drawn_from;
    /* what is asked for */
    struct window window;
    int32_t only_pid, only_tid;
    uint32_t shard, shards; /* of several engines that go over the same trace, which one this is */
    struct moments moments;
    struct charges charges;
    /* the segment */
    struct events events;
    size_t at, run_end, chunk_start, chunk_end;
    size_t open_end; /* up to here rows say what was open when the thread was first seen */
    struct thread *current;
    bool last, in_chunk, ahead;
    bool starved; /* more rows are needed to look ahead */
    struct step *steps; /* of the chunk, where it was looked at ahead */
    size_t steps_capacity;
    struct end *older;
    size_t older_count, older_capacity;
    struct frames seen;
    struct sched_row *sched;
    uint8_t *to;
    size_t sched_capacity, to_capacity;
    /* the answer */
    uint32_t piece;
    struct rows rows, before; /* of this piece, and of the one before, which the caller may still be reading */
    struct edges edges;
    struct tree tree;
    struct sites sites; /* of the tree's calls */
    struct cores cores;
    struct lines lines;
};

bool room(void *array, size_t *capacity, size_t wanted, size_t size);
void engine_new_piece(struct engine *engine);

static inline bool failed(struct engine *engine, enum rebuild_error error)
{
    engine->error = error;
    return false;
}

/* --- threads.c --- */

struct thread *engine_thread(struct engine *engine, int32_t pid, int32_t tid);
struct thread *engine_known(const struct engine *engine, int64_t key);

/* --- scheduling.c --- */

bool engine_due(struct engine *engine, struct thread *thread);
bool engine_catch_up(struct engine *engine, struct thread *thread);

/* --- events.c --- */

void engine_watch(const struct engine *engine, struct thread *thread);

/* Of several engines each has some of the threads. All meet the same threads in the same order, so their numbers are the same. */
static inline bool is_own(const struct engine *engine, const struct thread *thread)
{
    return thread->number % engine->shards == engine->shard;
}

bool tree_begin_anew(struct engine *engine);

static inline uint64_t hash(uint64_t key)
{
    return (key ^ key >> 29) * 0x9e3779b97f4a7c15ull;
}

/* values.c: bytes as UTF-8, those that are none as \xff; returns how many it wrote, at most four for each. */
size_t put_text(uint8_t *to, const uint8_t *from, size_t size);

#endif
