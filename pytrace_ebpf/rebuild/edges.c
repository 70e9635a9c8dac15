/* Begins and ends of calls, thread by thread in the order in which they happen: what nests needs no rows, and no memory but a piece's. */
#include <stdlib.h>

#include "engine.h"

/* A call of `func` begins on the thread, or with ENDS the innermost one ends. */
bool edges_add(struct engine *engine, const struct thread *thread, int64_t ns, int32_t func)
{
    struct edges *edges = &engine->edges;
    if (edges->count == edges->capacity && !room(&edges->edge, &edges->capacity, edges->count + 1, sizeof *edges->edge))
        return engine->error = NO_MEMORY, false;
    edges->edge[edges->count++] = (struct edge){ns, func, thread->number};
    return true;
}

/* From here on they are made. */
OFFERED void rebuild_want_edges(struct engine *engine)
{
    engine->wants_edges = true;
}

/* Those of the last piece; returns how many. */
OFFERED size_t rebuild_edges(const struct engine *engine, const struct edge **edges)
{
    *edges = engine->edges.edge;
    return engine->edges.count;
}
