/* The place that a call was made from: where its caller's frame stands. Each is reported to user space once, with the line table of its code.
 *
 * A place is known by its code object and instruction. Of a frame that is entered it is noted, too, that it is no generator's.
 */
#ifndef PYTRACE_CALL_LINES_H
#define PYTRACE_CALL_LINES_H

#include "code_objects.h"

#define READ_NOTHING (~0ULL - NEAR_BYTES)
#define SHIMS 4 /* of the interpreter's own, so many frames can be between a call and its caller */

/* In place of a number: */
#define NO_CALLER 1 /* the frame is the interpreter's own, and the caller is the one behind it */
#define TOO_LONG 2  /* the code's line table is longer than any record */

#define UNREAD_TABLE ~0ULL /* call_site.size */
#define SITE_NUMBERS (1 << 18) /* so many a core gives; then they are used again, and all is asked for anew */

BPF_TABLE("lru_hash", struct code_key, struct site, sites, 131072);

BPF_RINGBUF_OUTPUT(call_sites, RING_PAGES);
LAYOUT(call_site_event);
BPF_RINGBUF_OUTPUT(long_call_sites, RING_PAGES);
LAYOUT(long_call_site_event);

/* Direct-mapped, per CPU: the number of a place. */
#define PLACES 1024
struct place {
    struct code_key key;
    __u64 since;
    __u64 number; /* 0 = the key is not to be trusted */
    __u32 writers;
    __u32 pad;
};
BPF_PERCPU_ARRAY(places, struct place, PLACES);

/* Frames that were entered and are no generators', by their address: those need not be asked at their return whether they yield. */
#define PLAIN_SLOTS 8192
BPF_ARRAY(plain, __u64, PLAIN_SLOTS);

struct standing {
    __u64 code;
    __u64 position;
    __u64 below;
    __u32 owner;
};

/* Another one for each frame of any process, while no entry was missed. */
static __always_inline __u64 plain_mark(__u64 frame, __u32 tgid, __u32 era)
{
    return frame + ((__u64)(tgid + era * 40503) << 47);
}

static __always_inline void mark(__u64 frame, __u32 tgid, __u32 era, int is_plain)
{
    int slot = SLOT(frame, 13);
    __u64 *cell = plain.lookup(&slot);

    if (cell)
        *cell = is_plain ? plain_mark(frame, tgid, era) : 0;
}

static __always_inline int is_plain(__u64 frame, __u32 tgid, __u32 era)
{
    int slot = SLOT(frame, 13);
    __u64 *cell = plain.lookup(&slot);

    return cell && *cell == plain_mark(frame, tgid, era);
}

#define IN(head, type, offset) (*(type *)((head) + ((offset) & 127)))

static __always_inline void stand(struct standing *found, const char *head)
{
    found->code = IN(head, __u64, FRAMES->frame_code) & ~3ULL;
    found->below = IN(head, __u64, FRAMES->frame_previous);
    found->owner = FRAMES->frame_owner == ABSENT ? OWNED_BY_THREAD : IN(head, __u8, FRAMES->frame_owner);
    if (FRAMES->code_start != ABSENT)
        found->position = IN(head, __u64, FRAMES->frame_position) - found->code - FRAMES->code_start;
    else
        found->position = (__s64)IN(head, __s32, FRAMES->frame_position) * TABLE->unit;
}

/* Reports a place to user space; 0 = the ring is full. */
static __always_inline int report(const struct call_site *site, __u64 table)
{
    struct call_site_event *event;
    struct long_call_site_event *long_event;
    __u64 size = site->size;

    asm volatile("" : "+r"(size)); /* or the compiler checks another register than it uses */
    if (size <= sizeof(event->table)) {
        event = call_sites.ringbuf_reserve(sizeof(*event));
        if (!event)
            return 0;
        event->site = *site;
        if (bpf_probe_read_user(event->table, size, (void *)table))
            event->site.size = UNREAD_TABLE;
        call_sites.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
        return 1;
    }
    long_event = long_call_sites.ringbuf_reserve(sizeof(*long_event));
    if (!long_event)
        return 0;
    long_event->site = *site;
    if (size > sizeof(long_event->table) || bpf_probe_read_user(long_event->table, size, (void *)table))
        long_event->site.size = UNREAD_TABLE;
    long_call_sites.ringbuf_submit(long_event, BPF_RB_NO_WAKEUP);
    return 1;
}

/* The number of a place, which is reported to user space where it is new; 0 = it could not be. */
static __always_inline __u32 number_of(struct work *work, __u32 slot, struct control *now, __u64 ts, __u32 era, struct code_key *key)
{
    struct code *code;
    struct site *site;
    __u64 table, size;

    work->of_code = (struct code_key){.code = key->code, .tgid = key->tgid};
    code = codes.lookup(&work->of_code);
    if (!code || code->era != era) {
        work->fresh = (struct code){.version = ts, .era = era};
        codes.update(&work->of_code, &work->fresh);
        code = codes.lookup(&work->of_code);
        if (!code)
            return 0;
    }
    site = sites.lookup(key);
    if (site && site->version == code->version)
        return site->number;
    table = TAKE(__u64, key->code + TABLE->code_lines);
    size = TAKE(__u64, table + BYTES_SIZE);
    if (size > sizeof(((struct long_call_site_event *)0)->table))
        return TOO_LONG;
    if (++work->introduced == SITE_NUMBERS) {
        work->introduced = 1;
        __sync_fetch_and_add(&now->generation, 1);
    }
    work->reported = (struct call_site){
        .number = (work->introduced + 1) * DRAFTS + slot,
        .caller = code->func,
        .position = key->position,
        .first_line = TAKE(__s32, key->code + FRAMES->code_first_line),
        .size = size,
    };
    if (!report(&work->reported, table + BYTES_DATA))
        return 0;
    work->site = (struct site){.version = code->version, .number = work->reported.number};
    sites.update(key, &work->site);
    return work->reported.number;
}

/* For the next time that this core is there. */
static __always_inline void remember(struct place *place, const struct code_key *key, __u64 since, __u32 number)
{
    if (MINE(place->writers)) {
        place->number = 0;
        BARRIER;
        place->key = *key;
        place->since = since;
        BARRIER;
        place->number = number;
    }
    NO_MORE(place->writers);
}

/* What `places` has of a place; 0 = nothing. */
static __always_inline __u64 recall(const struct place *place, const struct code_key *key, __u64 since)
{
    __u64 number = *(volatile __u64 *)&place->number;

    BARRIER;
    if (place->key.code != key->code || place->key.position != key->position || place->key.tgid != key->tgid || place->since != since)
        return 0;
    BARRIER;
    return *(volatile __u64 *)&place->number == number ? number : 0;
}

/* Takes a frame; from what was read already, where it is near. */
static __always_inline int take_frame(struct work *work, __u64 frame, struct standing *found)
{
    __u64 away = frame - work->read_from;

    asm volatile("" : "+r"(away));
    if (away < NEAR_BYTES) {
        stand(found, (char *)work->frames + (away & ~7ULL));
        return 1;
    }
    if (!frame || bpf_probe_read_user(work->frame, TABLE->frame_size, (void *)frame))
        return 0;
    stand(found, (char *)work->frame);
    return 1;
}

/* Takes the frame that was entered, along with what is near. */
static __always_inline int take_first(struct work *work, __u64 frame, struct standing *found)
{
    work->read_from = frame - NEAR_BYTES;
    if (FRAMES->code_start != ABSENT && !bpf_probe_read_user(work->frames, NEAR_BYTES + TABLE->frame_size, (void *)work->read_from)) {
        stand(found, (char *)work->frames + NEAR_BYTES);
        return 1;
    }
    work->read_from = READ_NOTHING;
    return take_frame(work, frame, found);
}

static __always_inline __u32 called_from_with(struct work *work, __u32 own, struct control *now, __u64 ts, __u32 tgid, __u64 frame, const struct known *function)
{
    struct code_key key = {.tgid = tgid};
    struct standing callee, caller;
    struct place *place;
    __u64 since;
    __u32 number;
    int taken = take_first(work, frame, &callee), slot, i;

    mark(frame, tgid, era_of(now), taken && (FRAMES->frame_owner == ABSENT ? !(function->flags & GENERATOR) : callee.owner == OWNED_BY_THREAD));
    if (!taken)
        return 0;
    enter(work, now, ts, tgid, callee.code, function);
    since = now_since(now);
    caller.below = callee.below;
#pragma clang loop unroll(disable)
    for (i = 0; i < SHIMS; i++) {
        if (!take_frame(work, caller.below, &caller))
            return 0;
        if (caller.owner >= FRAMES->owner_shim)
            continue;
        key.code = caller.code;
        key.position = caller.position;
        slot = SLOT(caller.code + caller.position, 10);
        place = places.lookup(&slot);
        if (!place)
            return 0;
        number = recall(place, &key, since);
        if (!number && FRAMES->frame_owner != ABSENT && (__s64)caller.position < 2 * (__s64)TAKE(__s32, caller.code + FRAMES->code_start - 16)) {
            number = NO_CALLER;
            remember(place, &key, since, number);
        }
        if (!number)
            break;
        if (number != NO_CALLER)
            return number;
    }
    if (i == SHIMS)
        return 0;
    number = number_of(work, own, now, ts, since >> 32, &key);
    remember(place, &key, since, number);
    return number;
}

/* Takes in that `frame` was entered. The number of the place that it was called from; 0 = unknown. */
static __always_inline __u32 called_from(struct control *now, __u64 ts, __u32 tgid, __u64 frame, const struct known *function)
{
    __u32 own, number = 0;
    struct work *work = take_work(&own);

    if (work) {
        number = called_from_with(work, own, now, ts, tgid, frame, function);
        NO_MORE(work->users);
    } else {
        __sync_fetch_and_add(&now->generation, 1); /* what was entered is not known: that is as after an exec */
    }
    return number;
}

#endif
