/* Lines as sums. */
#ifndef PYTRACE_LINES_H
#define PYTRACE_LINES_H

#include "calls.h"
#include "sites.h"

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

#endif
