/* Tells apart the stacks that a program switches between on one thread.
 *
 * The interpreter reports no switch. But every event has its frame, with those that called it behind it: where the innermost call that
 * is open is not among them, the stack is another one. Then what was open yields, as a coroutine does, and what was open on the other
 * stack is resumed; so the calls of a thread stay nested. Only frames of the stack that runs are looked at: suspended ones are known
 * by their numbers alone.
 *
 * An open call takes 48 bytes. Those of a stack that is gone without any event, as of a thread that ended, are kept until its frame's
 * place is used again or the session ends. */
#include "stacks.h"

#include <string.h>

#include "callers.h"
#include "functions.h"
#include "pages.h"

#define SLAB (64 << 10)
#define BUCKETS 4096

struct open_call {
    uint32_t frame, number; /* the frame that it is, or is called in; its own number */
    uint32_t function, line;
    uint32_t thread, depth; /* of a suspended stack, in its innermost call: the writer's number, and its depth */
    bool written;
    struct open_call *caller, *next; /* next: in its bucket, or spare */
};

static struct slab {
    struct slab *next;
    struct open_call calls[(SLAB - sizeof(void *)) / sizeof(struct open_call)];
} *slabs;

bool stacks_switch;
void (*stacks_unseen)(PyObject *code);
static struct open_call *spare;
static struct open_call *suspended[BUCKETS]; /* the innermost calls of the stacks that do not run, by their frames */

/* --- the calls that are open --- */

static void set_free(struct open_call *call)
{
    call->next = spare;
    spare = call;
}

static void set_stack_free(struct open_call *innermost)
{
    for (struct open_call *caller; innermost; innermost = caller) {
        caller = innermost->caller;
        set_free(innermost);
    }
}

static void set_slab_free(struct slab *slab)
{
    for (size_t i = 0; i < sizeof slab->calls / sizeof *slab->calls; i++)
        set_free(&slab->calls[i]);
}

static struct open_call *take(void)
{
    if (!spare) {
        struct slab *slab = pages(sizeof *slab);
        if (!slab)
            return NULL;
        slab->next = slabs;
        slabs = slab;
        set_slab_free(slab);
    }
    struct open_call *call = spare;
    spare = call->next;
    return call;
}

/* Without memory a call is not known to be open. */
static void push(struct writer *w, uint32_t frame, uint32_t number, uint32_t function, uint32_t line, bool written)
{
    struct open_call *call = take();
    if (!call)
        return;
    *call = (struct open_call){.frame = frame, .number = number, .function = function, .line = line, .written = written, .caller = w->innermost};
    w->innermost = call;
}

static void pop(struct writer *w)
{
    struct open_call *call = w->innermost;
    w->innermost = call->caller;
    set_free(call);
}

/* --- the stacks that do not run --- */

static struct open_call **bucket_of(uint32_t frame)
{
    return &suspended[frame * 0x9e3779b1u >> 20];
}

/* The stack of this thread with that innermost frame, which is suspended no more; NULL = there is none. */
static struct open_call *take_suspended(const struct writer *w, uint32_t frame)
{
    struct open_call **at = bucket_of(frame);
    for (struct open_call *call; (call = *at);) {
        if (call->frame != frame) {
            at = &call->next;
            continue;
        }
        *at = call->next;
        if (call->thread == w->number)
            return call;
        set_stack_free(call); /* of a thread that has ended */
    }
    return NULL;
}

void stacks_suspend(struct writer *w, const void *frame)
{
    struct open_call *innermost = w->innermost;
    if (!innermost)
        return;
    uint32_t line = frame && innermost->number == frame_number(frame) ? line_of(frame) : 0;
    line = line == NO_CALLER ? 0 : line;
    for (struct open_call *call = innermost; call; call = call->caller) {
        if (call->written)
            write_event(w, call->function, call->number, line, CALL_YIELD);
        line = call->line;
    }
    struct open_call **bucket = bucket_of(innermost->frame);
    innermost->thread = w->number;
    innermost->depth = w->depth;
    innermost->next = *bucket;
    *bucket = innermost;
    w->innermost = NULL;
    w->depth = 0;
}

static struct open_call *turned_round(struct open_call *call)
{
    struct open_call *before = NULL, *next;
    for (; call; call = next) {
        next = call->caller;
        call->caller = before;
        before = call;
    }
    return before;
}

/* A stack runs again. */
static void resume(struct writer *w, struct open_call *innermost)
{
    w->depth = innermost->depth;
    struct open_call *outermost = turned_round(innermost);
    for (struct open_call *call = outermost; call; call = call->caller)
        if (call->written)
            write_event(w, call->function, call->number, call->line, CALL_RESUME);
    w->innermost = turned_round(outermost);
}

/* The calls of `frame` and those behind it; `reported`: of functions that were written before alone. */
static struct open_call *stack_of(void *frame, bool reported)
{
    struct open_call *innermost = NULL, **end = &innermost;
    uint32_t depth = 0;
    for (; frame; frame = frame_behind(frame)) {
        PyObject *code = code_of_frame(frame);
        struct function_entry *function = !code || (reported && !function_reported(code)) ? NULL : function_of(code);
        struct open_call *call = function ? take() : NULL;
        if (!call)
            continue;
        if (!reported && stacks_unseen)
            stacks_unseen(code);
        uint32_t number = frame_number(frame);
        *call = (struct open_call){.frame = number, .number = number, .function = function->id, .line = line_called_from(frame)};
        *end = call;
        end = &call->caller;
        depth++;
    }
    if (innermost)
        innermost->depth = depth;
    for (struct open_call *call = innermost; call; call = call->caller)
        call->written = !options.max_depth || depth-- <= options.max_depth;
    return innermost;
}

static bool is_open(const struct writer *w, uint32_t frame)
{
    for (const struct open_call *call = w->innermost; call; call = call->caller)
        if (call->frame == frame)
            return true;
    return false;
}

/* The end was not seen of what is open within `frame`: it ends here. */
static void end_within(struct writer *w, uint32_t frame)
{
    while (w->innermost->frame != frame) {
        if (!too_deep(w, false) && w->innermost->written)
            write_event(w, w->innermost->function, w->innermost->number, 0, CALL_RETURN);
        pop(w);
    }
}

void stacks_come_to(struct writer *w, void *innermost)
{
    const struct open_call *last = w->innermost;
    for (void *frame = innermost; frame && last; frame = frame_behind(frame))
        if (last->frame == frame_number(frame))
            return;
    for (void *frame = innermost; frame; frame = frame_behind(frame)) {
        uint32_t number = frame_number(frame);
        struct open_call *stack = take_suspended(w, number);
        if (stack) {
            stacks_suspend(w, NULL);
            resume(w, stack);
            return;
        }
        if (is_open(w, number)) {
            end_within(w, number);
            return;
        }
    }
    stacks_suspend(w, NULL);
    struct open_call *unseen = stack_of(innermost, false); /* its greenlet was suspended when the session began */
    if (unseen)
        resume(w, unseen);
}

void stacks_enter(struct writer *w, void *frame, uint32_t number, uint32_t function, uint32_t line)
{
    uint32_t own = frame_number(frame);
    const struct open_call *last = w->innermost;
    bool imports = last && last->frame == own && last->number == number_of_import(frame) && last->number != number;
    bool fresh = number != number_of_call(frame) && !imports;
    for (struct open_call *stale; fresh && (stale = take_suspended(w, own));) /* what was known at its place is gone */
        set_stack_free(stale);
    while (fresh && w->innermost && w->innermost->frame == own)
        pop(w);
    stacks_come_to(w, fresh ? frame_behind(frame) : frame);
    bool deep = options.max_depth && w->depth >= options.max_depth;
    push(w, own, number, function, line, !deep || number == number_of_import(frame));
}

void stacks_leave(struct writer *w, void *frame, uint32_t number)
{
    uint32_t own = frame_number(frame);
    stacks_come_to(w, frame);
    const struct open_call *call = w->innermost;
    while (call && call->frame == own && call->number != number)
        call = call->caller;
    if (!call || call->frame != own)
        return;
    while (w->innermost != call)
        pop(w);
    pop(w);
}

void stacks_open(struct writer *w, void *frame, uint32_t function, uint32_t line, bool written)
{
    push(w, frame_number(frame), frame_number(frame), function, line, written);
}

void stacks_note(struct writer *w, void *innermost)
{
    w->innermost = stack_of(innermost, true);
}

void stacks_forget_of(struct writer *w)
{
    set_stack_free(w->innermost);
    w->innermost = NULL;
}

void stacks_forget(void)
{
    writers_each(stacks_forget_of);
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct open_call *stack; (stack = suspended[i]);) {
            suspended[i] = stack->next;
            set_stack_free(stack);
        }
}

void stacks_begin(void)
{
    spare = NULL;
    for (struct slab *slab = slabs; slab; slab = slab->next)
        set_slab_free(slab);
    memset(suspended, 0, sizeof suspended);
    stacks_switch = false;
}
