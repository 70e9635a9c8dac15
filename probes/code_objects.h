/* Which code object is at an address: code may be freed, and other code take its place.
 *
 * None makes a call before it is entered, so what is known of an address holds while nothing else is entered there. Where a program
 * is attached to, or another one takes its process, entries were missed: all is looked up anew (`era`).
 */
#ifndef PYTRACE_CODE_OBJECTS_H
#define PYTRACE_CODE_OBJECTS_H

#include "common.h"
#include "frames.h"
#include "usdt_functions.h"

#define TABLE (&SETTINGS->lines)
#define BYTES_SIZE 16 /* of a bytes object: its length, and from its contents on */
#define BYTES_DATA 32

/* What is known of the code object at an address. */
struct code {
    __u64 version; /* another one for each code object that was seen there */
    __u64 content; /* hash of its line table, where code like it may be compiled again and again; else 0 */
    __u32 func;    /* function_event.id; 0 = it was called from, and not entered yet */
    __u32 era;
};
struct code_key {
    __u64 code;
    __u32 tgid;
    __u32 position; /* of an instruction in it, in bytes; of the code object itself 0 */
};
BPF_TABLE("hash", struct code_key, struct code, codes, 131072);

struct site {
    __u64 version; /* struct code's */
    __u64 number;  /* call_site.number */
};

struct renewals {
    __u32 takeovers;  /* code objects that took another one's address */
    __u32 recompiled; /* files that were compiled once more, and are not what they were */
};
BPF_ARRAY(renewals, struct renewals, 1);

/* function_event.id of a file's module -> struct code's content */
BPF_TABLE("lru_hash", __u32, __u64, modules, 16384);

/* Direct-mapped, per CPU: that this function's was the code object entered last at its address. */
#define ENTERED_SLOTS 1024
struct entered {
    __u64 code;
    __u64 since; /* now_since() */
    __u32 tgid;
    __u32 func;
};
BPF_PERCPU_ARRAY(entered, struct entered, ENTERED_SLOTS);

/* By the address of a frame, or of code. */
#define SLOT(address, bits) ((int)((address) * 0x9e3779b97f4a7c15ULL >> (64 - (bits))))

/* Raised by all after which frames may have been entered without being seen. */
static __always_inline __u32 era_of(const struct control *now)
{
    return now->generation + now->attached;
}

/* What is remembered holds while this is the same; its upper half is struct code's era. */
static __always_inline __u64 now_since(const struct control *now)
{
    int zero = 0;
    volatile struct renewals *all = renewals.lookup(&zero);

    return all ? (__u64)(era_of(now) + all->recompiled) << 32 | all->takeovers : 0;
}

/* Frames lie one behind the other (3.11+): the caller's, where it is no further away, is read along with the callee's. */
#define NEAR_BYTES 256
#define FRAME_MOST 128 /* bytes of one that are read at most */

/* What there is no room for on a program's stack: two for each core, as of drafts. */
struct work {
    __u32 users;
    __u32 introduced;
    struct code_key of_code;
    struct code fresh;
    struct site site;
    struct call_site reported;
    __u64 part[8];
    __u64 read_from; /* address of the first byte of `frames`, READ_NOTHING */
    __u64 frames[(NEAR_BYTES + FRAME_MOST) / 8];
    __u64 frame[FRAME_MOST / 8];
};
BPF_ARRAY(works, struct work, 1);

static __always_inline struct work *take_work(__u32 *number)
{
    int i;

#pragma unroll
    for (i = 0; i < 2; i++) {
        struct work *work;

        *number = bpf_get_smp_processor_id() + i * SETTINGS->cpus;
        work = works.lookup((int *)number);
        if (work && MINE(work->users))
            return work;
        if (work)
            NO_MORE(work->users);
    }
    return 0;
}

/* A hash of the line table and of the line that it begins with; another one each time where it is too long. */
#define HASHED 512
static __always_inline __u64 content_of(struct work *work, __u64 code, __u64 ts)
{
    __u64 table = TAKE(__u64, code + TABLE->code_lines), hash = TAKE(__u32, code + FRAMES->code_first_line);
    __u64 size = TAKE(__u64, table + BYTES_SIZE);
    __u64 left;
    __u32 i;
    int j;

    if (!size || size > HASHED)
        return ts;
#pragma clang loop unroll(disable)
    for (i = 0; i < HASHED / 64; i++) {
        if (64 * i >= size)
            break;
        left = size - 64 * i < 64 ? size - 64 * i : 64;
        asm volatile("" : "+r"(left));
#pragma unroll
        for (j = 0; j < 8; j++)
            work->part[j] = 0;
        if (left > 64 || bpf_probe_read_user(work->part, left, (void *)(table + BYTES_DATA + 64 * i)))
            return ts;
#pragma unroll
        for (j = 0; j < 8; j++)
            hash = (hash ^ work->part[j]) * 1099511628211ULL;
    }
    return hash | 1;
}

/* Looks the function's code object up among those that were at its address. */
static __always_inline void renew(struct work *work, __u64 ts, __u32 tgid, __u32 era, __u64 address, const struct known *function)
{
    struct code *found;
    int zero = 0;
    struct renewals *all = renewals.lookup(&zero);
    __u64 *before;
    __u32 func = function->id;

    work->of_code = (struct code_key){.code = address, .tgid = tgid};
    work->fresh = (struct code){.version = ts, .func = func, .era = era};
    if (function->text & COMPILED_ANEW)
        work->fresh.content = content_of(work, address, ts);
    found = codes.lookup(&work->of_code);
    if (found && found->era == era && found->func == func && found->content == work->fresh.content)
        return;
    if (found && all)
        __sync_fetch_and_add(&all->takeovers, 1);
    if (function->text & MODULE_OF_FILE && all) {
        before = modules.lookup(&func);
        if (before && *before != work->fresh.content) {
            __sync_fetch_and_add(&all->recompiled, 1);
            work->fresh.era++;
        }
        modules.update(&func, &work->fresh.content);
    }
    codes.update(&work->of_code, &work->fresh);
}

/* Takes in that a function was entered, whose code object this is. */
static __always_inline void enter(struct work *work, const struct control *now, __u64 ts, __u32 tgid, __u64 address, const struct known *function)
{
    int slot = SLOT(address, 10);
    struct entered *hit = entered.lookup(&slot);
    __u64 since = now_since(now);

    if (!hit)
        return;
    if (!(function->text & COMPILED_ANEW) && hit->code == address && hit->tgid == tgid && hit->func == function->id && hit->since == since)
        return;
    hit->since = 0;
    BARRIER;
    renew(work, ts, tgid, since >> 32, address, function);
    hit->code = address;
    hit->tgid = tgid;
    hit->func = function->id;
    BARRIER;
    hit->since = now_since(now);
}

#endif
