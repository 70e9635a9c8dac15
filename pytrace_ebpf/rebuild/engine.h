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
 *     sums.c         these sums
 *     sites.c        calls as sums by where they were called from
 *     lines.c        lines as sums
 *     window.c       a window of the recording: the part of each call that lies within it
 *     innermost_at.c the innermost call at moments that are asked for
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
 *     gil_handoffs.c which events show that the GIL went from one thread to another
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
#ifndef PYTRACE_ENGINE_H
#define PYTRACE_ENGINE_H

#include "activations.h"
#include "calls.h"
#include "charges.h"
#include "common.h"
#include "cores.h"
#include "edges.h"
#include "innermost_at.h"
#include "lines.h"
#include "places.h"
#include "rows.h"
#include "sites.h"
#include "threads.h"
#include "timeline.h"
#include "tree.h"
#include "window.h"

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
    int32_t only_pid, *only_tids; /* any where it is negative, and where there are none */
    size_t only_count;
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

void engine_new_piece(struct engine *engine);

static inline bool failed(struct engine *engine, enum rebuild_error error)
{
    engine->error = error;
    return false;
}

/* --- scheduling.c, events.c --- */

bool engine_due(struct engine *engine, struct thread *thread);
bool engine_catch_up(struct engine *engine, struct thread *thread);
void engine_watch(const struct engine *engine, struct thread *thread);

/* Of several engines each has some of the threads. All meet the same threads in the same order, so their numbers are the same. */
static inline bool is_own(const struct engine *engine, const struct thread *thread)
{
    return thread->number % engine->shards == engine->shard;
}

#endif
