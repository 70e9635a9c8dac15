/* Where what is of a thread lies in an array, by the thread's key: a hash table, at most half full. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"

/* The slot of a key or, where it is new, that which it is to have. */
static size_t slot_of(const struct places *all, int64_t key)
{
    size_t at = hash((uint64_t)key) >> 20 & (all->slots - 1);
    while (all->slot[at].after && all->slot[at].key != key)
        at = (at + 1) & (all->slots - 1);
    return at;
}

/* The place of a key, NO_PLACE for none. */
uint32_t places_find(const struct places *all, int64_t key)
{
    return all->slots ? all->slot[slot_of(all, key)].after - 1 : NO_PLACE;
}

static bool grow(struct places *all)
{
    struct places more = {.slots = all->slots ? 2 * all->slots : 256, .count = all->count};
    if (!(more.slot = calloc(more.slots, sizeof *more.slot)))
        return false;
    for (size_t k = 0; k < all->slots; k++)
        if (all->slot[k].after)
            more.slot[slot_of(&more, all->slot[k].key)] = all->slot[k];
    free(all->slot);
    *all = more;
    return true;
}

/* Give a key that has none a place below NO_PLACE. False: no memory. */
bool places_put(struct places *all, int64_t key, uint32_t place)
{
    if (2 * (all->count + 1) > all->slots && !grow(all))
        return false;
    all->slot[slot_of(all, key)] = (struct placed){key, place + 1};
    all->count++;
    return true;
}

/* Forget all of them. */
void places_clear(struct places *all)
{
    if (all->count)
        memset(all->slot, 0, all->slots * sizeof *all->slot);
    all->count = 0;
}
