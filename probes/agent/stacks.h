/* The calls that each thread has open, in a program that switches between stacks: see stacks.c. All under the GIL. */
#ifndef PYTRACE_STACKS_H
#define PYTRACE_STACKS_H

#include "arena.h"
#include "cpython.h"
#include "options.h"

/* It does: whoever writes that a call begins or ends says so here first. */
extern bool stacks_switch;
/* Who wants to know of code of which a frame is met that was on no thread's stack when the session began; NULL = nobody. */
extern void (*stacks_unseen)(PyObject *code);

/* The frame's number in events. */
static inline uint32_t frame_number(const void *frame)
{
    return (uintptr_t)frame >> 3;
}

/* No frame begins at the second or third word of another, and a frame has one import or one call of what is written in C open at a time. */
static inline uint32_t number_of_import(const void *frame)
{
    return frame ? frame_number(frame) + 1 : 0;
}

static inline uint32_t number_of_call(const void *frame)
{
    return frame ? frame_number(frame) + 2 : 0;
}

/* Deeper than asked for? Counts the depth as it goes. */
static inline bool too_deep(struct writer *w, bool entering)
{
    if (LIKELY(!options.max_depth))
        return false;
    if (entering)
        return w->depth++ >= options.max_depth;
    if (w->depth)
        w->depth--;
    return w->depth >= options.max_depth;
}

/* A session begins or ends: there are none. */
void stacks_begin(void);
/* What was written as open of a thread that runs `innermost`, before anybody kept it. */
void stacks_note(struct writer *writer, void *innermost);
/* Nothing is open any more, as far as is known: at all, or on the stack that a thread runs. */
void stacks_forget(void);
void stacks_forget_of(struct writer *writer);

/* A call begins that is `frame`, or is made in it: `number` is its own among frames, `line` where it was called from. */
void stacks_enter(struct writer *writer, void *frame, uint32_t number, uint32_t function, uint32_t line);
/* It ends. */
void stacks_leave(struct writer *writer, void *frame, uint32_t number);
/* It was open when it was first seen, within all that was said to be open of its thread. */
void stacks_open(struct writer *writer, void *frame, uint32_t function, uint32_t line, bool written);

/* The thread runs `innermost`, with the frames behind it: the stack that these are on is its own from now on. */
void stacks_come_to(struct writer *writer, void *innermost);
/* It runs none of its stacks: what is open yields. `frame`: the one that it runs, which says where that stands; NULL = unknown. */
void stacks_suspend(struct writer *writer, const void *frame);

#endif
