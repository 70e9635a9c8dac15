/* Where something of a thread lies. */
#ifndef PYTRACE_PLACES_H
#define PYTRACE_PLACES_H

#include "common.h"

#define NO_PLACE UINT32_MAX

struct placed {
    int64_t key;
    uint32_t after; /* the place plus one; 0: the slot is free */
};

struct places {
    struct placed *slot;
    size_t slots, count;
};

uint32_t places_find(const struct places *all, int64_t key);
bool places_put(struct places *all, int64_t key, uint32_t place);
void places_clear(struct places *all);

#endif
