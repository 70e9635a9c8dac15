/* The contract between the agent, which lives in the traced process, and the tracer.
 *
 * A session is a directory that the tracer prepares and the target can read:
 *
 *     agent.so    this library
 *     options     lines of key=value, see options.h
 *     lock        held by flock(LOCK_EX) while the tracer lives
 *
 * Each traced process creates one arena, a sparse file <pid>.<n>.arena in the directory
 * that `options` names, and writes its events there; the tracer maps the same file.
 *
 *     0                      struct arena
 *     FUNCTIONS_START        function records, each struct function, then its text; up to functions_end
 *     CHUNKS_START           chunks of chunk_bytes, each a struct chunk, then at CHUNK_HEADER its events
 *
 * A thread writes to a chunk of its own and takes a fresh one when that is full, so that
 * threads never wait for one another, a quiet thread costs one chunk, and a busy one may
 * use all of them. The tracer gives a full chunk back by setting its state to CHUNK_FREE.
 *
 * Every struct is stated once, by a list of its fields; `pytrace_layout` says to the
 * tracer what the compiler made of it.
 */
#ifndef PYTRACE_AGENT_H
#define PYTRACE_AGENT_H

#include <stdint.h>

#define ARENA_MAGIC 0x746e656761727970ull /* "pyragent" */
#define FUNCTIONS_START 4096
#define CHUNKS_START (64 << 20)
#define CHUNK_HEADER 64

/* arena.state, written by the agent; REFUSED: `message` says why */
enum { ARENA_STARTING, ARENA_ACTIVE, ARENA_QUIET, ARENA_REFUSED };
/* arena.command, written by the tracer; the agent waits for its change by futex */
enum { COMMAND_RECORD, COMMAND_STOP };
/* chunk.state: FREE -> WRITING by the agent, -> FULL by the agent (also when the thread ends), -> FREE by the tracer */
enum { CHUNK_FREE, CHUNK_WRITING, CHUNK_FULL };
enum { CLOCK_IS_TSC, CLOCK_IS_MONOTONIC };

#define ARENA_FIELDS(FIELD, ARRAY) \
    FIELD(uint64_t, magic)          /* stored last: the rest of the header is valid then */ \
    FIELD(uint32_t, pid)            /* as the process itself sees it */ \
    FIELD(uint32_t, python)         /* PY_VERSION_HEX */ \
    FIELD(uint32_t, state)          /* ARENA_* */ \
    FIELD(uint32_t, command)        /* COMMAND_* */ \
    FIELD(uint32_t, clock)          /* CLOCK_IS_* */ \
    FIELD(uint32_t, chunk_bytes)    /* header and events */ \
    FIELD(uint32_t, chunks)         /* chunks in use so far; those from here on were never touched */ \
    FIELD(uint32_t, forked_from)    /* pid of the traced process this one was forked from, 0 = none */ \
    FIELD(uint64_t, started)        /* stamp: every event is younger */ \
    FIELD(uint64_t, stopped)        /* stamp of the end of recording, 0 = not yet */ \
    FIELD(uint64_t, functions_end)  /* offset in the arena behind the last function record */ \
    FIELD(uint64_t, dropped)        /* events for which there was no chunk */ \
    FIELD(uint64_t, unnamed)        /* functions for which there was no room: their events carry function 0 */ \
    FIELD(uint64_t, waited_ns)      /* time the program was held up for want of a chunk (wait_ms) */ \
    ARRAY(char, message, 512)       /* ARENA_REFUSED: one sentence, UTF-8, ends with a NUL */

#define CHUNK_FIELDS(FIELD, ARRAY) \
    FIELD(uint32_t, state)  /* CHUNK_* */ \
    FIELD(uint32_t, tid)    /* of the writing thread, as the process itself sees it */ \
    FIELD(uint64_t, order)  /* of this use of the chunk among all of the process; grows */ \
    FIELD(uint64_t, count)  /* events written so far; release-stored after the event */

/* Followed by file, name and qualified name, each ended by a NUL; `size` counts all of it and is a multiple of 8. */
#define FUNCTION_FIELDS(FIELD, ARRAY) \
    FIELD(uint32_t, size) \
    FIELD(uint32_t, id)         /* of event.function; from 1 */ \
    FIELD(int32_t, first_line)  /* -LAYER_* of events.h: no Python function; then the names are the generation's or the module's */ \
    FIELD(uint32_t, flags)      /* co_flags */

/* One event, 16 bytes.
 *   stamp_line: bits 0-47 the clock's low 48 bits, 48-63 the line's low 16
 *   what:       bits 0-31 the frame's address >> 3, low half; 32-51 function; 52-54 kind; 55-63 the line's high 9
 * kind: CALL_* of events.h. frame: of a collection 1, of an import one more than importlib's. line: ENTRY and RESUME first line, RETURN, YIELD and UNWIND the line that was left, 0 = unknown. */
#define EVENT_FIELDS(FIELD, ARRAY) \
    FIELD(uint64_t, stamp_line) \
    FIELD(uint64_t, what)

#define DECLARE_FIELD(type, name) type name;
#define DECLARE_ARRAY(type, name, count) type name[count];
struct arena { ARENA_FIELDS(DECLARE_FIELD, DECLARE_ARRAY) };
struct chunk { CHUNK_FIELDS(DECLARE_FIELD, DECLARE_ARRAY) };
struct function { FUNCTION_FIELDS(DECLARE_FIELD, DECLARE_ARRAY) };
struct event { EVENT_FIELDS(DECLARE_FIELD, DECLARE_ARRAY) };

/* What the library exports.
 *
 * Loading it does nothing, unless an `options` file lies beside it: then it begins by itself, at the start of
 * the program's own code when it was preloaded (LD_PRELOAD), at once when it was loaded into a running Python. */

/* Begin a session in this process, from a thread of its own; returns at once. For a process that holds the library already. */
int pytrace_begin(const char *directory);
/* The same with the signature of a pending call of CPython. */
int pytrace_begin_pending(void *directory);
/* For the tracer: one moment in both clocks, {stamp, CLOCK_MONOTONIC ns}; `clock` is CLOCK_IS_*. */
void pytrace_anchor(uint32_t clock, uint64_t moment[2]);
/* Lines of "struct field type offset count", the types as NumPy writes them (u8, i4, S1), numbers with leading zeros;
 * from the lists above. */
extern const char pytrace_layout[];

#endif
