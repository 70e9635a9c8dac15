/* What every probe shares: loss counters and the layout maps. */
#ifndef PYTRACE_COMMON_H
#define PYTRACE_COMMON_H

#include "events.h"

struct loss {
    __u64 count;
    __u64 first_ts; /* of the first loss ever counted here */
    __u64 last_ts;
};

BPF_PERCPU_ARRAY(losses, struct loss, LOSS_CLASSES);

/* A map that is never used: through it user space learns the struct's layout from the compiler. */
#define LAYOUT(type) BPF_ARRAY(layout_##type, struct type, 1)

static __always_inline void count_loss(__u32 class, __u64 ts)
{
    struct loss *loss = losses.lookup((int *)&class);

    if (!loss)
        return;
    if (!loss->count)
        loss->first_ts = ts;
    loss->last_ts = ts;
    loss->count++;
}

#endif
