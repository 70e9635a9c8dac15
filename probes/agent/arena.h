/* The arena of this process: the file, its chunks, and the events that each thread writes to its own. */
#ifndef PYTRACE_ARENA_H
#define PYTRACE_ARENA_H

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "../events.h"
#include "agent.h"
#include "build.h"
#include "options.h"

#define PASSED_WINDOW 64 /* events that are not written, until the clock is looked at */
#define NO_SESSION UINT64_MAX
#define AWAITING 0xfffffffffffffffeull /* writer.session: open_frame was reported as its thread's innermost frame, and nothing of the thread since */
#define DUE (1ull << 62) /* in writer.session: before its thread reports the next event it looks whether something is to be done */
#define LAST_FUNCTION ((1 << 20) - 1)

/* A call of what is written in C: its number among frames, and its function. */
struct c_call {
    uint32_t frame, function;
};

/* memory.c: of a thread since its last event, and of a call that is open. */
struct counted {
    uint64_t blocks, bytes;
    int64_t level, peak;
};
struct mark {
    uint32_t begun; /* calls that the thread had begun when it was entered, itself included */
    uint32_t freed_blocks;
    uint64_t freed_bytes;
};

/* Where a thread writes. Belongs to the thread. */
struct writer {
    uint64_t session; /* it is good while this equals `recording` */
    struct event *next, *end, *stop; /* stop: of the chunk; end: until where it writes before it looks at the clock */
    uint64_t looked;     /* at the clock, ns */
    uint32_t window;     /* events from one such look to the next */
    struct chunk *chunk;
    struct chunk *values; /* the one for values; NULL = none yet */
    uint64_t before;     /* records in the chunks that it has filled */
    uint64_t values_before;
    struct chunk *allocations;
    uint64_t allocations_before;
    struct counted counted;
    struct mark *marks;  /* of the open calls, the outermost first; NULL = none yet */
    uint32_t open, begun;
    bool allocating;     /* within an allocator */
    struct opcode *executing; /* opcodes.c: what the thread is at since; NULL = nothing that is counted */
    uint64_t executing_since;
    uint32_t tid;
    uint32_t number;     /* chunk.thread */
    uint32_t untimed;    /* events until one is timed: timing.c */
    uint32_t phase;      /* of that, likewise */
    uint64_t passed;     /* arena->passed when that began */
    bool code;           /* since `code_since` Python's code runs; else a C function */
    uint64_t code_since, code_since_ns; /* stamp; and CPU time, of the event before */
    uint64_t random;
    uint32_t depth;      /* recorded calls that are open, where there is a bound to them */
    uint32_t turned_away; /* events since the last look for a chunk that found none */
    uint32_t open_frame; /* innermost frame reported as open; 0 = none */
    uint32_t collecting; /* function of the collection whose begin was reported; 0 = none */
    uint32_t imports;    /* whose begin was reported */
    bool unlined;        /* another one traces its lines, see hooks_profile.c */
    uint32_t c_calls_open, c_calls_room;
    struct c_call *c_calls; /* that are open and were written, the outermost first */
    struct open_call *innermost; /* greenlets.c: of the calls that it has open on the stack that runs */
    uint32_t interpreter; /* number of the last one beside the main one whose calls it wrote; 0 = none */
    bool foreign;        /* it writes one just now */
    void *closing;       /* frame that close() enters only because somebody watches; NULL = none */
    uint64_t thread;     /* the interpreter's own number of the thread that it is kept for; 0 = taken */
    bool over;           /* its thread has ended */
    struct writer *link;
};

struct ended {
    struct arena *arena;
    size_t size;
};

extern struct arena *arena;
/* Number of the session whose events are written now; 0 = none. A thread that finds it changed writes nothing. */
extern uint64_t recording;
extern _Thread_local struct writer *this_writer __attribute__((tls_model("initial-exec")));

/* Allocations are counted. */
extern bool memory_on;
void memory_before_event(struct writer *w, uint64_t kind);

static inline uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline uint64_t stamp_of(uint32_t clock)
{
    uint64_t stamp;
    if (UNLIKELY(clock != CLOCK_IS_TSC))
        return clock_ns();
    READ_COUNTER(stamp);
    return stamp;
}

/* Around what several threads may do at once: where there is no GIL, and where a thread ends, which is without it. Whoever holds the lock asks
 * nothing of the interpreter, so that he cannot be stopped with it, and nobody waits for it long. */
void arena_lock(void);
void arena_unlock(void);
/* Creates and maps the arena of this process; false where that is impossible. */
bool arena_open(uint32_t python, uint32_t forked_from);
/* Set its state, and wake who waits for it. */
void arena_say(struct arena *arena, uint32_t state);
/* Takes it from the threads, none of which may be writing any more; what is left to do is arena_end. */
struct ended arena_detach(void);
/* The last word to the tracer, with a sentence when it is ARENA_REFUSED. */
void arena_end(struct ended ended, uint32_t state, const char *message);
/* In a forked child: the parent's arena is none of its business. */
void arena_forget(void);
/* In the child, on the thread that forked: the others are gone. */
void writers_after_fork(void);
void arena_unlink(void);
/* A new function's record. Its id, 0 where there is no room. */
uint32_t arena_add_function(int32_t first_line, uint32_t flags, const char *const text[3], const size_t length[3]);
/* The text of a function record's part, for comparison. */
const struct function *arena_function_at(uint64_t offset);

/* A writer without a chunk for `tid`; NULL where there is no memory. `thread` is not 0: to be adopted by that thread. */
struct writer *writer_new(uint32_t tid, uint64_t thread);
/* GIL held, or while no thread runs Python: `recording` is 0 from now on, and nothing more is written to this arena by who runs the main interpreter. */
void writers_close(void);
/* Make it the calling thread's own. */
void writer_take(struct writer *writer);
/* The one that was kept for this thread, 0: for any with this id; NULL = none. */
struct writer *writer_kept(uint32_t tid, uint64_t thread);
/* The one of a thread that has written something; NULL = none. */
struct writer *writer_of(uint32_t tid);
/* That frame was reported as open: the thread may be about to enter it, and that entry is then not written again. */
static inline void writer_awaits(struct writer *writer, uint32_t frame)
{
    writer->open_frame = frame;
    writer->session = AWAITING;
}
/* Whether it writes to that session. */
static inline bool writes_to(const struct writer *writer, uint64_t session)
{
    return (writer->session & ~DUE) == session;
}
/* Of each thread of the session. */
void writers_each(void (*act)(struct writer *));
/* The tracer is gone, or wants no more: who waits for a chunk asks this. */
extern bool (*nobody_reads)(void);
/* Nobody waits for a chunk from now on until the next arena is opened. */
void arena_wait_no_more(void);
/* A chunk with room; false: the event is lost, and counted. */
bool writer_make_room(struct writer *writer);

/* An event had no room. */
static inline void arena_dropped(void)
{
    __atomic_fetch_add(&arena->dropped, 1, __ATOMIC_RELAXED);
}

/* The calling thread's writer looks at the clock. */
void writer_looks(void);

/* An event was looked at that is not to be written. */
static inline void arena_passed(void)
{
    if (LIKELY(arena != NULL) && UNLIKELY(++arena->passed % PASSED_WINDOW == 0))
        writer_looks();
}

/* Places for so many values, which belong to the last event that was written; values_written is to follow. NULL: there are not as many
 * in one chunk, which is counted. */
struct value *room_for_values(struct writer *writer, uint32_t count);

static inline void values_written(struct writer *w, uint32_t count)
{
    __atomic_store_n(&w->values->count, w->values->count + count, __ATOMIC_RELEASE);
}

/* A place for such a record; allocations_written is to follow. NULL: there is none, which is counted. */
struct allocations *room_for_allocations(struct writer *writer);

static inline void allocations_written(struct writer *w)
{
    __atomic_store_n(&w->allocations->count, w->allocations->count + 1, __ATOMIC_RELEASE);
}

/* GIL held. A place for such a record; arena_opcode_added is to follow. NULL: there is none. */
struct opcode *arena_add_opcode(void);
void arena_opcode_added(void);

/* False: the event is lost, and counted. */
static inline bool write_event(struct writer *w, uint32_t function, uint32_t frame, uint32_t line, uint64_t kind)
{
    if (UNLIKELY(memory_on))
        memory_before_event(w, kind);
    struct event *e = w->next;
    if (UNLIKELY(e == w->end)) {
        if (!writer_make_room(w))
            return false;
        e = w->next;
    }
    *e = event_of(stamp_of(options.clock), function, frame, line, kind);
    w->next = e + 1;
    __atomic_store_n(&w->chunk->count, w->chunk->count + 1, __ATOMIC_RELEASE);
    return true;
}

#endif
