/* Blocks of memory that the C library hands out and takes back, sampled by their bytes.
 *
 * A block of at least `every` bytes is always reported and stands for itself. A smaller one is reported with the probability
 * size / every and stands for `every` bytes, so that sums of these are right on average, whatever the sizes; nothing has to be
 * kept for that. Of a block that was reported it is reported, too, that it was freed.
 *
 * Where processes are of several users, nobody takes more of the ring, and has more blocks known, than he leaves: who fills them loses his own alone.
 */
#include <uapi/linux/ptrace.h>
#include "common.h"

struct settings {
    __u64 every; /* bytes, at most 1 GiB */
    __u64 changes_room; /* bytes of the ring that users share; 0: all is of one */
    __u64 most_blocks;  /* that are known at a time */
};
LAYOUT(settings);

BPF_RINGBUF_OUTPUT(changes, RING_PAGES);
LAYOUT(block_event);

/* The cookie of a probe: which function that is, and so where its arguments are. */
#define MALLOC 0         /* size; also valloc, pvalloc */
#define CALLOC 1         /* count, size */
#define REALLOC 2        /* old, size */
#define MEMALIGN 3       /* alignment, size; also aligned_alloc */
#define POSIX_MEMALIGN 4 /* where the address is to go, alignment, size */

#define LARGEST (1ULL << 47) /* a program's addresses have so many bits */

/* Blocks that were reported and are not freed yet. */
struct place {
    __u64 address;
    __u64 pid;
};
struct block {
    __u64 ts;
    __u64 size;
    __u64 stands;
    __u64 tid;
};
BPF_F_TABLE("hash", struct place, struct block, blocks, 1024, BPF_F_NO_PREALLOC);

/* A call that has begun. MALLOC and CALLOC: only where it is to be reported. The others always, as they may call malloc. */
struct making {
    __u64 stack;
    __u64 size;
    __u64 stands; /* 0 = not to be reported */
    __u64 result; /* POSIX_MEMALIGN: where it goes */
    __u64 old;    /* REALLOC: the address before */
    struct block was; /* and what is known of that; stands 0 = nothing */
    __u64 whole;  /* what it calls is a part of it */
};
BPF_TABLE("lru_hash", __u64, struct making, makings, 8192);

static __always_inline __u64 stands_for(__u64 size)
{
    if (!size || size >= LARGEST)
        return 0;
    if (size >= SETTINGS->every)
        return size;
    return (bpf_get_prandom_u32() * SETTINGS->every) >> 32 < size ? SETTINGS->every : 0;
}

BPF_HASH(owners, __u32, __u32, 16384); /* process -> who pays for it */
/* By user. */
BPF_HASH(taken, __u32, __u64, 4096);   /* bytes of the ring, since user space emptied it and deleted this */
BPF_HASH(kept, __u32, __u64, 4096);    /* blocks that are known, and those that user space deleted */
BPF_HASH(deleted, __u32, __u64, 4096); /* the latter, which user space counts */

static __always_inline __u64 *taken_by(__u32 user)
{
    __u64 none = 0;

    return taken.lookup_or_try_init(&user, &none);
}

static __always_inline __u64 *kept_by(__u32 user)
{
    __u64 none = 0;

    return kept.lookup_or_try_init(&user, &none);
}

static __always_inline __u32 owner_of(__u64 pid_tgid)
{
    __u32 pid = pid_tgid >> 32, *user = owners.lookup(&pid);

    return user ? *user : 0;
}

/* Not 0: there is room in the ring for one change more of this process. */
static __always_inline int may_report(__u64 pid_tgid)
{
    const __u64 size = sizeof(struct block_event) + 8;
    __u64 *own, *all;

    if (!SETTINGS->changes_room)
        return 1;
    own = taken_by(owner_of(pid_tgid));
    all = taken_by(EVERYBODY);
    if (!own || !all || *own + *all + 2 * size > SETTINGS->changes_room)
        return 0;
    __sync_fetch_and_add(own, size);
    __sync_fetch_and_add(all, size);
    return 1;
}

static __always_inline __u64 kept_of(__u32 user)
{
    __u64 *known = kept.lookup(&user), *less = deleted.lookup(&user);

    return (known ? *known : 0) - (less ? *less : 0);
}

/* Not 0: one block more of this process may be known. */
static __always_inline int may_keep(__u64 pid_tgid)
{
    return !SETTINGS->changes_room || kept_of(owner_of(pid_tgid)) + kept_of(EVERYBODY) + 2 <= SETTINGS->most_blocks;
}

static __always_inline void count_kept(__u64 pid_tgid, __s64 change)
{
    __u64 *own, *all;

    if (!SETTINGS->changes_room)
        return;
    own = kept_by(owner_of(pid_tgid));
    all = kept_by(EVERYBODY);
    if (own && all) {
        __sync_fetch_and_add(own, change);
        __sync_fetch_and_add(all, change);
    }
}

static __always_inline void report(__u64 ts, __u64 pid_tgid, __s64 level, const struct block *block)
{
    struct block_event *event = 0;

    if (may_report(pid_tgid))
        event = changes.ringbuf_reserve(sizeof(*event));
    if (!event) {
        count_loss(LOSS_BLOCK_RING);
        return;
    }
    event->ts = ts;
    event->pid_tgid = pid_tgid;
    event->level = level;
    event->size = block->size;
    event->allocated_ts = level < 0 ? block->ts : 0;
    event->allocated_tid = level < 0 ? block->tid : 0;
    changes.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Not 0: the block is known, and is not any more. */
static __always_inline int take_out(__u64 pid_tgid, __u64 address, struct block *to)
{
    struct place place = {.address = address, .pid = pid_tgid >> 32};
    struct block *known = blocks.lookup(&place);

    if (!known)
        return 0;
    *to = *known;
    if (!blocks.delete(&place))
        count_kept(pid_tgid, -1);
    return 1;
}

static __always_inline void put_in(__u64 pid_tgid, __u64 address, const struct block *block)
{
    struct place place = {.address = address, .pid = pid_tgid >> 32};

    if (!may_keep(pid_tgid) || blocks.update(&place, (struct block *)block))
        count_loss(LOSS_BLOCK_MAP);
    else
        count_kept(pid_tgid, 1);
}

/* Not 0: its return is of no interest. */
static __always_inline int begin(struct pt_regs *ctx)
{
    __u64 pid_tgid = bpf_get_current_pid_tgid(), function = bpf_get_attach_cookie(ctx);
    struct making *outer = makings.lookup(&pid_tgid), making = {};

    /* What jumps into malloc, instead of calling it, leaves it its own frame. */
    if (outer && outer->whole && ctx->sp <= outer->stack)
        return 1;
    making.stack = ctx->sp;
    switch (function) {
    case MALLOC: making.size = ctx->di; break;
    case CALLOC: making.size = ctx->di * ctx->si; break;
    case POSIX_MEMALIGN: making.size = ctx->dx; break;
    default: making.size = ctx->si;
    }
    making.stands = stands_for(making.size);
    making.whole = function >= REALLOC;
    if (!making.stands && !making.whole)
        return 1;
    if (function == POSIX_MEMALIGN)
        making.result = ctx->di;
    if (function == REALLOC) {
        making.old = ctx->di;
        take_out(pid_tgid, making.old, &making.was);
    }
    makings.update(&pid_tgid, &making);
    return 0;
}

static __always_inline int end(struct pt_regs *ctx)
{
    __u64 ts = bpf_ktime_get_ns(), pid_tgid = bpf_get_current_pid_tgid(), address = ctx->ax;
    struct making *found = makings.lookup(&pid_tgid), making;
    struct block block = {};

    if (!found || found->stack + 8 != ctx->sp)
        return 0;
    making = *found;
    makings.delete(&pid_tgid);
    if (making.result)
        address = (__u32)address ? 0 : TAKE(__u64, making.result);
    if (making.was.stands && !address && making.size) { /* it stays where it is */
        put_in(pid_tgid, making.old, &making.was);
        return 0;
    }
    if (making.was.stands)
        report(ts, pid_tgid, -making.was.stands, &making.was);
    if (!address || !making.stands)
        return 0;
    block.ts = ts;
    block.size = making.size;
    block.stands = making.stands;
    block.tid = (__u32)pid_tgid;
    if (take_out(pid_tgid, address, &making.was)) /* it was freed unseen */
        report(ts, pid_tgid, -making.was.stands, &making.was);
    report(ts, pid_tgid, block.stands, &block);
    put_in(pid_tgid, address, &block);
    return 0;
}

/* From Linux 6.13 on one program sees both, and says at a function's beginning whether it is to see its return: that takes as long
 * as its beginning does. */
int both(struct pt_regs *ctx)
{
    if (bpf_get_func_ip(ctx) != ctx->ip)
        return end(ctx);
    return begin(ctx);
}

int begun(struct pt_regs *ctx)
{
    begin(ctx);
    return 0;
}

int ended(struct pt_regs *ctx)
{
    return end(ctx);
}

int freed(struct pt_regs *ctx)
{
    __u64 pid_tgid = bpf_get_current_pid_tgid();
    struct block block = {};

    if (ctx->di && take_out(pid_tgid, ctx->di, &block))
        report(bpf_ktime_get_ns(), pid_tgid, -block.stands, &block);
    return 0;
}
