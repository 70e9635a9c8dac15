/* Calls as they happen, to user space: what every source of them by probes shares. */
#ifndef PYTRACE_CALLS_H
#define PYTRACE_CALLS_H

#include "common.h"

BPF_RINGBUF_OUTPUT(calls, RING_PAGES);
LAYOUT(call_event);

static __always_inline void emit(__u64 ts, __u64 pid_tgid, __u32 func, __u64 frame, __s32 line, __u32 kind)
{
    struct call_event *event = calls.ringbuf_reserve(sizeof(*event));

    if (!event) {
        count_loss(LOSS_CALL_RING);
        return;
    }
    event->ts = ts;
    event->pid_tgid = pid_tgid;
    event->func = func;
    event->frame = frame >> 3;
    event->line = line;
    event->kind = kind;
    calls.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

#endif
