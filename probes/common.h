/* What every probe shares: settings, tracepoints, loss counters and the layouts of structs. */
#ifndef PYTRACE_COMMON_H
#define PYTRACE_COMMON_H

#include "events.h"

#define RING_PAGES 1 /* of every ring: user space says how large it is to be */
#define EVERYBODY 0xffffffff /* among users: their sum */

struct losses {
    __u64 count[LOSS_CLASSES];
};

BPF_PERCPU_ARRAY(losses, struct losses, 1);

/* A tracepoint program, which is attached as soon as it is loaded. Arguments: TP_PROTO of the tracepoint, in include/trace/events. */
#define TRACEPOINT(name) int tracepoint_##name(struct bpf_raw_tracepoint_args *ctx)

/* Read-only data that user space writes before it loads the programs: a struct settings, which has a LAYOUT. The verifier knows
 * its values and leaves out the branches that they rule out, so that a setting costs no more than a constant. */
#define SETTINGS ((const struct settings *)bpf_pseudo_fd(2, 0))

/* A map that is never used: through it user space learns the struct's layout from the compiler. */
#define LAYOUT(type) BPF_ARRAY(layout_##type, struct type, 1)

/* Reading a process's memory, and the kernel's. bcc turns calls of helpers with these names into bpf_probe_read() where it does not find them
 * among the kernel's symbols, which are hidden from some (kernel.kptr_restrict, no CAP_SYSLOG): and that reads the kernel's memory at
 * whatever address a program makes up. It does not know these names. */
static int (*read_of_process)(void *to, __u32 size, const void *address) = (void *)BPF_FUNC_probe_read_user;
static int (*read_text_of_process)(void *to, __u32 size, const void *address) = (void *)BPF_FUNC_probe_read_user_str;
static int (*read_of_kernel)(void *to, __u32 size, const void *address) = (void *)BPF_FUNC_probe_read_kernel;
static int (*read_text_of_kernel)(void *to, __u32 size, const void *address) = (void *)BPF_FUNC_probe_read_kernel_str;
#define bpf_probe_read_user read_of_process
#define bpf_probe_read_user_str read_text_of_process
#define bpf_probe_read_kernel read_of_kernel
#define bpf_probe_read_kernel_str read_text_of_kernel

/* What a process has at an address; 0 where that cannot be read. */
#define TAKE(type, address) ({ type taken = 0; bpf_probe_read_user(&taken, sizeof(taken), (void *)(address)); taken; })

/* What the kernel has at an address; 0 where that cannot be read. */
#define KERNEL(type, address) ({ type taken = 0; bpf_probe_read_kernel(&taken, sizeof(taken), (void *)(address)); taken; })

#define MIX 0x9e3779b97f4a7c15ULL

static __always_inline __u64 mixed(__u64 hash, __u64 value)
{
    hash = (hash ^ value) * MIX;
    return hash ^ hash >> 32;
}

static __always_inline void count_losses(__u32 class, __u32 count)
{
    int zero = 0;
    struct losses *counters = losses.lookup(&zero);

    if (counters)
        counters->count[class] += count;
}

static __always_inline void count_loss(__u32 class)
{
    count_losses(class, 1);
}

#endif
