/* Calls as sums by context: the calling-context tree. */
#ifndef PYTRACE_TREE_H
#define PYTRACE_TREE_H

#include "sums.h"

struct engine;

struct node {
    uint32_t parent, thread; /* thread: of a thread's root; else NO_THREAD */
    int32_t func, depth;     /* depth: of its calls; -1 of a thread's root, whose total is that of its outermost calls */
    uint32_t follows[2];     /* when that happened last: what its parent entered after it, and its first child; 0 none */
    uint32_t site;           /* of the last call */
    uint8_t outermost;       /* as of a call */
    int64_t calls;
    struct sums total, self;
};

#define NO_THREAD UINT32_MAX

struct tree {
    struct node *node; /* the first is the root of all */
    size_t count, capacity, most;
    uint64_t *slot; /* by hash of parent, function and `outermost`: 32 bits of it, and the node's number */
    size_t slots;
};

bool tree_root(struct tree *tree, uint32_t thread, uint32_t *node);
bool tree_child(struct tree *tree, uint32_t parent, int32_t func, uint8_t outermost, uint32_t *newest, uint32_t *node);
void tree_free(struct tree *tree);
bool tree_begin_anew(struct engine *engine);

#endif
