/* Calls as sums by where they were called from. */
#ifndef PYTRACE_SITES_H
#define PYTRACE_SITES_H

#include "sums.h"

/* Where calls come from: the calling function, -1 none or unknown, and its line, -1 unknown; and the function called, -1 unknown. */
struct site {
    int32_t caller, line, func;
    uint32_t open; /* calls of the thread at hand */
    int64_t calls;
    struct sums total; /* of those that no other call of the site was open at */
    int64_t self_wall;
};

struct sites {
    struct site *site;
    size_t count, capacity;
    uint32_t *slot; /* by hash: the number plus one */
    size_t slots;
};

bool sites_find(struct sites *sites, int32_t caller, int32_t line, int32_t func, uint32_t *number);
void sites_begin_anew(struct sites *sites);
void sites_free(struct sites *sites);

#endif
