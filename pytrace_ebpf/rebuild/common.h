/* What all files of this library know: the numbers of a trace, and the states of a thread. */
#ifndef PYTRACE_COMMON_H
#define PYTRACE_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LIKELY(x) __builtin_expect(!!(x), 1)
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

static inline uint64_t hash(uint64_t key)
{
    return (key ^ key >> 29) * 0x9e3779b97f4a7c15ull;
}

static inline int64_t key_of(int32_t pid, int32_t tid)
{
    return (int64_t)((uint64_t)(uint32_t)pid << 32 | (uint32_t)tid);
}

/* Make an array hold `wanted` elements; its address may change. */
bool room(void *array, size_t *capacity, size_t wanted, size_t size);

/* values.c: bytes as UTF-8, those that are none as \xff; returns how many it wrote, at most four for each. */
size_t put_text(uint8_t *to, const uint8_t *from, size_t size);

#endif
