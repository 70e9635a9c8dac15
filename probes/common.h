/* What every probe shares: loss counters and the layout maps. */
#ifndef PYTRACE_COMMON_H
#define PYTRACE_COMMON_H

#include "events.h"

struct losses {
    __u64 count[LOSS_CLASSES];
};

BPF_PERCPU_ARRAY(losses, struct losses, 1);

/* A map that is never used: through it user space learns the struct's layout from the compiler. */
#define LAYOUT(type) BPF_ARRAY(layout_##type, struct type, 1)

static __always_inline void count_loss(__u32 class)
{
    int zero = 0;
    struct losses *counters = losses.lookup(&zero);

    if (counters)
        counters->count[class]++;
}

#endif
