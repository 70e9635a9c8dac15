/* What is charged to calls: page faults, bytes. */
#ifndef PYTRACE_CHARGES_H
#define PYTRACE_CHARGES_H

#include "common.h"

struct engine;
struct thread;
struct call;

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

#endif
