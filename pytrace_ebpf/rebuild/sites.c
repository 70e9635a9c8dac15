/* Call sites: calls and their sums by the calling function, its line, and the function called, whatever the calls above.
 *
 * Programs have so many places that call. A trace may name any number of lines: what there are more than MOST go by function alone. */
#include <stdlib.h>
#include <string.h>

#include "stack.h"
#include "engine.h"

#define FEW 1024
#define MOST (1 << 18)

static size_t slot_of(const struct sites *sites, int32_t caller, int32_t line, int32_t func)
{
    uint64_t from = (uint64_t)(uint32_t)caller << 32 | (uint32_t)func;
    return (from * 0x9e3779b97f4a7c15ull ^ (uint32_t)line * 0xd6e8feb86659fd93ull) >> 36 & (sites->slots - 1);
}

static bool more_slots(struct sites *sites)
{
    size_t slots = sites->slots ? sites->slots * 2 : FEW;
    uint32_t *slot = calloc(slots, sizeof *slot);
    if (!slot)
        return false;
    free(sites->slot);
    sites->slot = slot;
    sites->slots = slots;
    for (size_t number = 0; number < sites->count; number++) {
        const struct site *site = &sites->site[number];
        size_t at = slot_of(sites, site->caller, site->line, site->func);
        while (slot[at])
            at = (at + 1) & (slots - 1);
        slot[at] = (uint32_t)number + 1;
    }
    return true;
}

/* The number of a site, which may be new; what it is before is tried first. False: no memory. */
bool sites_find(struct sites *sites, int32_t caller, int32_t line, int32_t func, uint32_t *number)
{
    if (sites_again(sites, caller, line, func, *number))
        return true;
    for (;;) {
        if (sites->count * 2 >= sites->slots && !more_slots(sites))
            return false;
        size_t at = slot_of(sites, caller, line, func);
        for (; sites->slot[at]; at = (at + 1) & (sites->slots - 1)) {
            *number = sites->slot[at] - 1;
            if (sites_again(sites, caller, line, func, *number))
                return true;
        }
        if (sites->count >= MOST && (caller >= 0 || line >= 0)) {
            caller = line = -1;
            continue;
        }
        if (!room(&sites->site, &sites->capacity, sites->count + 1, sizeof *sites->site))
            return false;
        *number = (uint32_t)sites->count++;
        sites->site[*number] = (struct site){.caller = caller, .line = line, .func = func};
        sites->slot[at] = *number + 1;
        return true;
    }
}

/* No calls yet. Sites keep their numbers, which open calls know. */
void sites_begin_anew(struct sites *sites)
{
    for (size_t k = 0; k < sites->count; k++) {
        sites->site[k].calls = 0;
        memset(&sites->site[k].total, 0, sizeof sites->site[k].total);
        sites->site[k].self_wall = 0;
    }
}

void sites_free(struct sites *sites)
{
    free(sites->site);
    free(sites->slot);
}

/* The sites, some of which may have no calls; returns how many, each of rebuild_site_size() bytes. */
OFFERED size_t rebuild_sites(const struct engine *engine, const struct site **sites)
{
    *sites = engine->sites.site;
    return engine->sites.count;
}

OFFERED size_t rebuild_site_size(void)
{
    return sizeof(struct site);
}

/* Add the sites of another engine. False: no memory. */
OFFERED bool rebuild_merge_sites(struct engine *engine, const struct site *sites, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        uint32_t number = 0;
        if (!sites_find(&engine->sites, sites[k].caller, sites[k].line, sites[k].func, &number))
            return engine->error = NO_MEMORY, false;
        struct site *site = &engine->sites.site[number];
        site->calls += sites[k].calls;
        sums_merge(&site->total, &sites[k].total);
        site->self_wall += sites[k].self_wall;
    }
    return true;
}
