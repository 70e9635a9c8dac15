/* asyncio's running task, and its name.
 *
 * From 3.14 on a thread's state has the task, before a dict of the module has it by event loop. Whose thread that loop is in nobody says, and a task may
 * be of a class that is written in Python, with other fields: so it is the task of a stack only where the frame of its coroutine is on that.
 */
#ifndef PYTRACE_TASKS_H
#define PYTRACE_TASKS_H

#include "common.h"
#include "frames.h"

/* Offsets, by the names that record/cpython/layout.py has for them. */
struct task_layout {
    __s32 thread_task;
    __s32 task_coro;
    __s32 task_name;
    __s32 generator_frame;
    __s32 string_length;
    __s32 string_state;
    __s32 string_data;
    __s32 string_data_wide;
    __s32 code_start; /* up to 3.10, which has none, a coroutine has a pointer to its frame, and a dict another head */
    __s32 pad;
};

#define MOST_RUNNING 4  /* event loops that run a task at a time, of one process */
#define MOST_SLOTS 64 /* of the dict, those included that were deleted */

/* The tasks that may be the thread's, and where the frames of their coroutines are. */
struct running {
    __u64 task[MOST_RUNNING];
    __u64 frame[MOST_RUNNING];
    __u64 met; /* the one whose frame was found on the stack; 0 = none so far */
    __u32 count;
    __u32 pad;
};

#define DICT_KEYS 32 /* of a dict */
#define OBJECT_TYPE_OF 8
#define FLAGS_OF_TYPE 168
#define OF_INTS (1u << 24)
#define OF_TEXTS (1u << 28)
#define SIZE_OF_INT 16 /* lv_tag, 3.12 on */
#define DIGITS_OF_INT 24

static __always_inline void may_be(struct running *running, const struct task_layout *layout, __u64 task)
{
    __u64 frame = TAKE(__u64, task + layout->task_coro) + layout->generator_frame;
    __u32 at = running->count;

    if (layout->code_start == ABSENT)
        frame = TAKE(__u64, frame);
    if (at >= MOST_RUNNING)
        return;
    running->task[at] = task;
    running->frame[at] = frame;
    running->count = at + 1;
}

/* Finds them, of the thread with this state; `dict`: _asyncio._current_tasks, 0 = not known. */
static __always_inline void find_running(struct running *running, const struct task_layout *layout, __u64 dict, __u64 state)
{
    __u64 keys, entries, count;
    __u64 head[5];
    int i;

    running->count = 0;
    running->met = 0;
    if (!state)
        return;
    if (layout->thread_task != ABSENT) {
        __u64 task = TAKE(__u64, state + layout->thread_task);

        if (task)
            may_be(running, layout, task);
        return;
    }
    if (!dict)
        return;
    keys = TAKE(__u64, dict + DICT_KEYS);
    if (bpf_probe_read_user(head, sizeof(head), (void *)keys))
        return;
    if (layout->code_start == ABSENT) { /* dk_size, dk_nentries */
        entries = keys + 40 + head[1] * (head[1] <= 0xff ? 1 : head[1] <= 0xffff ? 2 : 4);
        count = head[4];
    } else { /* dk_log2_index_bytes, dk_nentries */
        entries = keys + 32 + (1ULL << (head[1] >> 8 & 31));
        count = head[3];
    }
    for (i = 0; i < MOST_SLOTS; i++) {
        __u64 task;

        asm volatile("" : "+r"(i)); /* or clang counts down from the lesser of both, and the verifier of Linux 6.1 sees no end of that */
        if (i >= count)
            break;
        task = TAKE(__u64, entries + 24 * i + 16); /* the hash, the key, the value */
        if (task)
            may_be(running, layout, task);
    }
}

/* A frame is on the stack. */
static __always_inline void meet(struct running *running, __u64 frame)
{
    int i;

#pragma unroll
    for (i = 0; i < MOST_RUNNING; i++)
        if (i < running->count && running->frame[i] == frame)
            running->met = running->task[i];
}

/* Reads the name of a task as a task_event; 0 = done. */
static __always_inline int take_name(struct task_event *to, const struct task_layout *layout, __u64 task)
{
    __u64 name = TAKE(__u64, task + layout->task_name), flags = TAKE(__u64, TAKE(__u64, name + OBJECT_TYPE_OF) + FLAGS_OF_TYPE), bytes, *words, hash;
    __u32 state;
    int i;

    __builtin_memset(to, 0, sizeof(*to));
    if (flags & OF_INTS) {
        __u64 digits = TAKE(__u64, name + SIZE_OF_INT) >> 3;

        if (digits > 2)
            return -1;
        to->length = TAKE(__u32, name + DIGITS_OF_INT) | (digits == 2 ? (__u64)TAKE(__u32, name + DIGITS_OF_INT + 4) << 30 : 0);
    } else if (flags & OF_TEXTS) {
        state = TAKE(__u32, name + layout->string_state);
        to->width = state >> 2 & 7;
        to->length = TAKE(__u64, name + layout->string_length);
        if (!(state >> 5 & 1) || (to->width != 1 && to->width != 2 && to->width != 4))
            return -1;
        bytes = to->length < TASK_NAME ? to->length * to->width : TASK_NAME;
        bytes = bytes < TASK_NAME ? bytes : TASK_NAME;
        asm volatile("" : "+r"(bytes));
        if (bytes > TASK_NAME || bpf_probe_read_user(to->name, bytes, (void *)(name + (state >> 6 & 1 ? layout->string_data : layout->string_data_wide))))
            return -1;
    } else {
        return -1;
    }
    hash = to->length ^ (__u64)to->width << 61;
    words = (__u64 *)to->name;
#pragma unroll
    for (i = 0; i < TASK_NAME / 8; i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ULL;
        hash ^= hash >> 32;
    }
    to->task = hash | 1;
    return 0;
}

#endif
