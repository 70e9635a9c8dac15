/* Begins and ends as they happen. */
#ifndef PYTRACE_EDGES_H
#define PYTRACE_EDGES_H

#include "common.h"

struct engine;
struct thread;

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

#endif
