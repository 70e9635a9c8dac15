/* What users take of the rings that all sampled processes share: nobody takes more of one than he leaves, so that who fills it loses his own alone. */
#ifndef PYTRACE_SHARES_H
#define PYTRACE_SHARES_H

#include "sampled.h"

#define OF_SAMPLES 0
#define OF_STACKS 1
#define OF_TASKS 2
#define OF_RESOURCES 3
#define OF_PATHS 4
#define RING_HEAD 8          /* bytes before a record */

struct taken {
    __u64 bytes[5]; /* of each ring, since user space emptied it and deleted this */
};
BPF_HASH(taken, __u32, struct taken, 4096); /* by user */

static __always_inline struct taken *taken_by(__u32 user)
{
    struct taken none = {};

    return taken.lookup_or_try_init(&user, &none);
}

/* Not 0: a user takes so many records of a ring, of so many bytes each. */
static __always_inline int may_take(__u32 user, int ring, __u64 room, __u64 records, __u64 size)
{
    __u64 bytes = records * (RING_HEAD + ((size + 7) & ~7ULL));
    struct taken *own, *all;

    if (!SETTINGS->shared)
        return 1;
    own = taken_by(user);
    all = taken_by(EVERYBODY);
    if (!own || !all || all->bytes[ring] + own->bytes[ring] + 2 * bytes > room)
        return 0;
    __sync_fetch_and_add(&own->bytes[ring], bytes);
    __sync_fetch_and_add(&all->bytes[ring], bytes);
    return 1;
}

#endif
