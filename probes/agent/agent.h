/* The contract between the agent, which lives in the traced process, and the tracer.
 *
 * A session is a directory that a process of the tracer's prepares with the rights of the target's user:
 *
 *     agent.so    this library
 *     options     lines of key=value, see options.h
 *     begin.py    a script that loads the library
 *     lock        write-locked (fcntl, F_OFD_SETLK) by that process, which lives as long as the tracer; only who may write to it could lock it so
 *
 * Each traced process creates one arena, a sparse file <pid>.<n>.arena in the directory that `options` names, which
 * nobody else may look into, and writes its events there. The tracer reads the file and believes nothing in it: it
 * copies what it looks at and checks the copy. A file that is cut meanwhile gives it less, never a signal.
 *
 *     0                      struct arena
 *     CHUNK_TABLE            a struct chunk for each chunk, so that the tracer learns of all by one read
 *     FUNCTIONS_START        function records, each struct function, then its text; up to functions_end
 *     CHUNKS_START           chunks of chunk_bytes: their events
 *
 * A thread writes to a chunk of its own and takes a fresh one when that is full, so that
 * threads never wait for one another, a quiet thread costs one chunk, and a busy one may
 * use all of them. The tracer gives a full chunk back by setting its state to CHUNK_FREE.
 *
 * A chunk holds records of one stream, all of one size. Events of calls are numbered within their thread, from 0: the one at
 * place i of a chunk has number chunk.first + i. A record of another stream names the event that it belongs to by that
 * number: its thread's last one when it is written.
 *
 * Every struct is stated once, by a list of its fields; `pytrace_layout` says to the
 * tracer what the compiler made of it.
 *
 * What is seen in which order, also by a processor that stores and loads out of order (aarch64):
 *
 *     agent to tracer   A record is stored, then the count of its chunk with release; a chunk's fields, then its state; functions, then functions_end; a message,
 *                       then `state`. The tracer reads the latter by one pread, what it stands for by a later one. Each takes a reference to the page
 *                       (folio_try_get), an atomic operation that is fully ordered where it succeeds (Documentation/atomic_t.txt), so that no load of the
 *                       second moves before those of the first.
 *     tracer to agent   It copies events by pread, then writes CHUNK_FREE by pwrite, which takes a reference too: the copy is done before that is
 *                       seen. The agent loads the state with acquire before it stores there. So it is with left_out_turn and what was written before it.
 *     within a program  The GIL's mutex orders what is plain. Without a GIL, and for what the agent's own thread shares, it is acquire and release (`locked`,
 *                       functions, writers) or sequentially consistent where each of two looks at what the other said last (`recording` and
 *                       `foreign`, `asked` and `runner`, `phase`). Of callers.h either half of a place may be old: their exclusive or shows it.
 *     one stamp         is of its thread's order: see READ_COUNTER of probes/processors/.
 */
#ifndef PYTRACE_AGENT_H
#define PYTRACE_AGENT_H

#include <stdint.h>

#define ARENA_MAGIC 0x746e656761727970ull /* "pyragent" */
#define CHUNK_TABLE (64 << 10) /* all parts begin at pages of the largest size that there is */
#define MOST_CHUNKS (1 << 16)
#define CHUNK_SIZE 64 /* of a struct chunk: a line of the processor's cache, since its thread writes there with every event */
#define FUNCTIONS_START (CHUNK_TABLE + MOST_CHUNKS * CHUNK_SIZE)
#define CHUNKS_START (64 << 20)

/* arena.state, written by the agent; REFUSED: `message` says why */
enum { ARENA_STARTING, ARENA_ACTIVE, ARENA_QUIET, ARENA_REFUSED };
/* arena.command, written by the tracer; threads that run Python look there from time to time */
enum { COMMAND_RECORD, COMMAND_STOP };
#define MOST_LEFT_OUT 512 /* functions at a time */
#define EVERYTHING UINT32_MAX /* left_out_count: no event at all is wanted; where it can, the source has the interpreter report none */
/* chunk.state: FREE -> WRITING by the agent, -> FULL by the agent (also when the thread ends), -> FREE by the tracer */
enum { CHUNK_FREE, CHUNK_WRITING, CHUNK_FULL };
/* chunk.stream: what its records are. CALLS: struct event; VALUES: struct value; ALLOCATIONS: struct allocations;
 * OPCODES: struct opcode, which are counted up where they lie: such a chunk is never full, and its thread is none */
enum { STREAM_CALLS, STREAM_VALUES, STREAM_ALLOCATIONS, STREAM_OPCODES, STREAMS };
enum { CLOCK_IS_TSC, CLOCK_IS_MONOTONIC };

#define ARENA_FIELDS(FIELD, ARRAY) \
    FIELD(uint64_t, magic)          /* stored last: the rest of the header is valid then */ \
    FIELD(uint32_t, pid)            /* as the process itself sees it */ \
    FIELD(uint32_t, python)         /* PY_VERSION_HEX */ \
    FIELD(uint32_t, state)          /* ARENA_* */ \
    FIELD(uint32_t, command)        /* COMMAND_* */ \
    FIELD(uint32_t, clock)          /* CLOCK_IS_* */ \
    FIELD(uint32_t, chunk_bytes)    /* of the events of a chunk */ \
    FIELD(uint32_t, chunks)         /* chunks in use so far; those from here on were never touched */ \
    FIELD(uint32_t, forked_from)    /* pid of the traced process this one was forked from, 0 = none */ \
    FIELD(uint64_t, started)        /* stamp: every event is younger */ \
    FIELD(uint64_t, stopped)        /* stamp of the end of recording, 0 = not yet */ \
    FIELD(uint64_t, functions_end)  /* offset in the arena behind the last function record */ \
    FIELD(uint64_t, dropped)        /* events for which there was no chunk */ \
    FIELD(uint64_t, unnamed)        /* functions for which there was no room: their events carry function 0 */ \
    FIELD(uint64_t, waited_ns)      /* time the program was held up for want of a chunk (wait_ms) */ \
    FIELD(uint64_t, values_dropped) /* values for which there was no chunk; they never wait for one */ \
    FIELD(uint64_t, allocations_dropped) /* struct allocations likewise */ \
    FIELD(uint64_t, untracked)      /* blocks for which the agent's table had no place: they count as allocated, and are never freed */ \
    FIELD(uint64_t, opcodes_dropped) /* instructions that were not counted, for which there was no room; and calls and returns while another one traced them */ \
    FIELD(uint64_t, passed)         /* events that were looked at and not written: of C functions, and of what is left out */ \
    FIELD(uint32_t, left_out_done)  /* the last turn that the agent has followed */ \
    FIELD(uint32_t, left_out_turn)  /* by the tracer: counts its lists, last of all; the next one waits until this one is done */ \
    FIELD(uint32_t, left_out_count) /* by the tracer: ids in left_out */ \
    FIELD(uint64_t, interpreters)   /* how many the program had made when recording ended, the main one included; 0 = not known */ \
    FIELD(uint64_t, threads_taken)  /* threads whose profile function was not the agent's any more when recording ended: their last calls were not written */ \
    FIELD(uint64_t, timed)          /* written events whose callback was timed: timing.c */ \
    FIELD(uint64_t, timed_ticks)    /* of the stamps' clock: what these callbacks took together */ \
    FIELD(uint64_t, timed_code)     /* events from which on it was timed for how long Python's code runs until the next one */ \
    FIELD(uint64_t, timed_code_ns)  /* that, together, CPU time */ \
    FIELD(uint64_t, granted)        /* by the tracer, the agent's first word being arena_first: bytes of the arena that may have memory; 0 = all */ \
    ARRAY(uint32_t, left_out, MOST_LEFT_OUT) /* by the tracer: functions whose calls are not written until another list says otherwise */ \
    ARRAY(char, message, 512)       /* ARENA_REFUSED: one sentence, UTF-8, ends with a NUL */

#define CHUNK_FIELDS(FIELD, ARRAY) \
    FIELD(uint32_t, state)  /* CHUNK_* */ \
    FIELD(uint32_t, tid)    /* of the writing thread, as the process itself sees it */ \
    FIELD(uint64_t, order)  /* of this use of the chunk among all of the process; grows */ \
    FIELD(uint64_t, count)  /* records written so far; release-stored after the record */ \
    FIELD(uint32_t, stream) /* STREAM_* */ \
    FIELD(uint32_t, record_bytes) \
    FIELD(uint64_t, first)  /* records of its stream that the thread had written before these */ \
    FIELD(uint32_t, thread) /* number of the writing thread among all that wrote to the arena, from 1: a tid may come again */ \
    FIELD(uint32_t, unused)

/* Followed by file, name and qualified name, each ended by a NUL; `size` counts all of it and is a multiple of 8. */
#define FUNCTION_FIELDS(FIELD, ARRAY) \
    FIELD(uint32_t, size) \
    FIELD(uint32_t, id)         /* of event.function; from 1 */ \
    FIELD(int32_t, first_line)  /* -LAYER_* of events.h: no Python function; then the names are the generation's or the module's. -NAME: no \
                                   function at all but the name, in `file`, of an argument or a type. -INTERPRETER: the thread whose id is in `flags` \
                                   makes calls of the interpreter whose id is the text in `file`, which is not the main one */ \
    FIELD(uint32_t, flags)      /* co_flags */

/* One event, 16 bytes.
 *   stamp_line: bits 0-47 the clock's low 48 bits, 48-63 the line's low 16
 *   what:       bits 0-31 the frame's address >> 3, low half; 32-51 function; 52-54 kind; 55-63 the line's high 9
 * kind: CALL_* of events.h; EVENT_STANDS for CALL_STANDS. frame: of a collection 1, of an import one more than importlib's. line: ENTRY, RESUME
 * and OPEN the line that the call was made from, RETURN, YIELD and UNWIND the line that was left; 0 = unknown. */
#define EVENT_STANDS 3 /* CALL_RESET, which no agent writes */
#define EVENT_FIELDS(FIELD, ARRAY) \
    FIELD(uint64_t, stamp_line) \
    FIELD(uint64_t, what)

/* VALUE_STATEMENT is no object: what a client library's function was asked for, or the trace context that a request came with, a VALUE_TEXT; `position`
 * is the place of its line among the options `client`, and `name` the record with the text where data has no room for it.
 *
 * What an object was at an event: an argument at an ENTRY, of which there are all or none, else what left the call. Only so much of
 * data as `size` says is written.
 *
 *     kind           length                  data
 *     VALUE_OTHER    0
 *     VALUE_NONE     0
 *     VALUE_BOOL     0 or 1
 *     VALUE_INT      bits of the magnitude   the digits, of 30 bits each, from the lowest one on, as uint32_t
 *     VALUE_NEGATIVE the same                the same
 *     VALUE_FLOAT    0                       a double
 *     VALUE_TEXT     characters              UTF-8; a lone surrogate as \udcff
 *     VALUE_BYTES    bytes                   these
 *     VALUE_SIZED    elements of a container
 *     VALUE_ARRAY    dimensions              of NumPy: the sizes, as int64_t; `dtype` is its type_num
 *     VALUE_TENSOR   dimensions              of PyTorch: the same; `dtype` is its c10::ScalarType */
enum { VALUE_OTHER, VALUE_NONE, VALUE_BOOL, VALUE_INT, VALUE_NEGATIVE, VALUE_FLOAT, VALUE_TEXT, VALUE_BYTES, VALUE_SIZED, VALUE_ARRAY, VALUE_TENSOR, VALUE_KINDS };
enum { VALUE_ARGUMENT, VALUE_RETURN, VALUE_YIELD, VALUE_RAISED, VALUE_WHATS, VALUE_STATEMENT };
/* CUT: data has not all of it, of a large int nothing. REDACTED: only its type is recorded. UNREAD: it could not be seen. */
enum { VALUE_COMPLETE, VALUE_CUT, VALUE_REDACTED, VALUE_UNREAD, VALUE_STATUSES };
#define NAME 255
#define INTERPRETER 254
#define VALUE_DATA 160
#define DIGIT_BITS 30

#define VALUE_FIELDS(FIELD, ARRAY) \
    FIELD(uint64_t, event)    /* number of the event */ \
    FIELD(uint32_t, name)     /* id of a function record; 0: it is no argument, or its name had no room */ \
    FIELD(uint32_t, type)     /* id of the function record with its type's qualified name; 0 likewise, and of what is UNREAD */ \
    FIELD(int64_t, length) \
    FIELD(uint16_t, position) /* of an argument */ \
    FIELD(uint16_t, size)     /* of data */ \
    FIELD(uint8_t, what)      /* VALUE_ARGUMENT to VALUE_RAISED */ \
    FIELD(uint8_t, kind) \
    FIELD(uint8_t, status)    /* VALUE_COMPLETE to VALUE_UNREAD */ \
    FIELD(uint8_t, dtype) \
    ARRAY(uint8_t, data, VALUE_DATA)

/* What a thread's Python memory did between its event of this number and its next one. `freed_...`: of blocks that were allocated and freed while
 * the call was open that is innermost after that event, and no call below it was. */
#define ALLOCATIONS_FIELDS(FIELD, ARRAY) \
    FIELD(uint64_t, event)        /* number of the event */ \
    FIELD(uint64_t, bytes)        /* allocated */ \
    FIELD(uint64_t, freed_bytes) \
    FIELD(int64_t, level)         /* growth of all that the thread has allocated and that is not freed */ \
    FIELD(int64_t, peak)          /* the most that this was at a time, 0 at first */ \
    FIELD(uint32_t, blocks) \
    FIELD(uint32_t, freed_blocks)

/* Instructions of a function, of one line, number and form. */
#define FORM_UNKNOWN 0 /* CPython had not tried to specialize it when it was first looked at, or does not say; or it has but one form */
#define OPCODE_FIELDS(FIELD, ARRAY) \
    FIELD(uint64_t, count)    /* how often they were executed */ \
    FIELD(uint64_t, ticks)    /* of the stamps' clock: how long the threads were at them, without what was counted within */ \
    FIELD(uint32_t, function) \
    FIELD(uint32_t, line)     /* 0 = none */ \
    FIELD(uint8_t, opcode)    /* number of the general instruction */ \
    FIELD(uint8_t, form)      /* of what stood in its place before it was counted; or FORM_UNKNOWN */ \
    FIELD(uint16_t, pad) \
    FIELD(uint32_t, spare)

#define DECLARE_FIELD(type, name) type name;
#define DECLARE_ARRAY(type, name, count) type name[count];
struct arena { ARENA_FIELDS(DECLARE_FIELD, DECLARE_ARRAY) };
struct chunk { CHUNK_FIELDS(DECLARE_FIELD, DECLARE_ARRAY) } __attribute__((aligned(CHUNK_SIZE)));
_Static_assert(sizeof(struct chunk) == CHUNK_SIZE, "");
struct function { FUNCTION_FIELDS(DECLARE_FIELD, DECLARE_ARRAY) };
struct event { EVENT_FIELDS(DECLARE_FIELD, DECLARE_ARRAY) };
struct value { VALUE_FIELDS(DECLARE_FIELD, DECLARE_ARRAY) };
_Static_assert(sizeof(struct value) == 32 + VALUE_DATA, "");
struct allocations { ALLOCATIONS_FIELDS(DECLARE_FIELD, DECLARE_ARRAY) };
struct opcode { OPCODE_FIELDS(DECLARE_FIELD, DECLARE_ARRAY) };
_Static_assert(sizeof(struct opcode) == 32, "");

static inline struct event event_of(uint64_t stamp, uint32_t function, uint32_t frame, uint32_t line, uint64_t kind)
{
    return (struct event){
        .stamp_line = (stamp & 0xffffffffffff) | (uint64_t)line << 48,
        .what = frame | (uint64_t)(function & 0xfffff) << 32 | kind << 52 | (uint64_t)(line >> 16) << 55,
    };
}

static inline uint32_t event_frame(uint64_t what)
{
    return (uint32_t)what;
}

static inline uint32_t event_function(uint64_t what)
{
    return what >> 32 & 0xfffff;
}

static inline uint32_t event_kind(uint64_t what)
{
    return what >> 52 & 7;
}

static inline uint32_t event_line(uint64_t stamp_line, uint64_t what)
{
    return (uint32_t)(stamp_line >> 48 | what >> 55 << 16);
}

/* What the library exports.
 *
 * Loading it does nothing, unless an `options` file is next to it: then it begins by itself, at the start of
 * the program's own code when it was preloaded (LD_PRELOAD), at once when it was loaded into a running Python. */

/* Begin a session in this process, soon; returns at once. For a process that holds the library already. */
int pytrace_begin(const char *directory);
/* The same with the signature of a pending call of CPython. */
int pytrace_begin_pending(void *directory);
/* Have done what arena.command and left_out_turn ask for: threads that run Python look by themselves, and where none does nobody would. */
void pytrace_look(void);
int pytrace_look_pending(void *unused);
/* For the tracer: one moment in both clocks, {stamp, CLOCK_MONOTONIC ns}; `clock` is CLOCK_IS_*. */
void pytrace_anchor(uint32_t clock, uint64_t moment[2]);
/* Lines of "struct field type offset count", the types as NumPy writes them (u8, i4, S1), numbers with leading zeros;
 * from the lists above. */
extern const char pytrace_layout[];

#endif
