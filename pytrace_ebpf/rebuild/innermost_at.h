/* The innermost call at moments that are asked for. */
#ifndef PYTRACE_INNERMOST_AT_H
#define PYTRACE_INNERMOST_AT_H

#include "common.h"

struct engine;
struct thread;
struct call;

#define NO_ANSWER (-2)

/* Of a function: others wait through it; it is not of the program's own code; it waits for whatever is to do next, on behalf of all of the program. */
enum library { LIBRARY = 1, FOREIGN = 2, EVENT_LOOP = 4 };

struct moments {
    const int64_t *key, *ts;
    size_t count;
    const uint8_t *library; /* by function: enum library */
    size_t functions;
    int64_t *call_id;
    int32_t *func, *entry, *caller, *own, *own_line, *own_called;
};

void moments_of(const int64_t *keys, size_t count, int64_t key, size_t *begin, size_t *end);
void moments_open(const struct engine *engine, struct thread *thread);
void moments_answer(struct engine *engine, struct thread *thread, int64_t ns);
void moments_name(struct engine *engine, struct thread *thread, const struct call *call, int32_t func);

#endif
