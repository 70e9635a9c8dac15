/* What observed functions are given, and what leaves them: where these objects are in a frame. */
#ifndef PYTRACE_USDT_VALUES_H
#define PYTRACE_USDT_VALUES_H

#include "usdt_objects.h"

BPF_RINGBUF_OUTPUT(objects, RING_PAGES);
LAYOUT(object_event);

/* By function_event.id, what user space says of the function; 0 = nothing yet, but the names of its arguments were sent. */
BPF_HASH(observed, __u32, __u64, 65536);
#define DECIDED (1ULL << 63)
#define NOT_OBSERVED (1ULL << 62)
#define SECRET_RESULT (1ULL << 61) /* and the lower bits: of an argument that is to be redacted */

#define MOST_OBSERVED 16 /* arguments of a call */
#define MOST_CELLS 16

#define TAKES_MORE 0x4          /* CO_VARARGS */
#define TAKES_MORE_KEYWORDS 0x8 /* CO_VARKEYWORDS */
#define IS_CELL 0x40            /* CO_FAST_CELL of co_localspluskinds */
#define CELL_CONTENT 16

/* Out of the loop's own condition, so that clang does not make one of both, in which the verifier sees no bound. */
#define ENDS(i, count) ({ __u32 end = (count); asm volatile("" : "+r"(end)); (i) >= end; })

static __always_inline struct object_event *begin_object(__u64 ts, __u64 pid_tgid, __u32 func, __u32 what, __u32 position)
{
    struct object_event *event = objects.ringbuf_reserve(sizeof(*event));

    if (!event)
        return 0;
    event->ts = ts;
    event->pid_tgid = pid_tgid;
    event->func = func;
    event->what = what;
    event->position = position;
    event->pad = 0;
    return event;
}

/* A frame's variable; from 3.14 on the low bits are a tag, and with both of them it is no object. */
static __always_inline __u64 variable(__u64 frame, __u32 place)
{
    __u64 bits = TAKE(__u64, frame + SETTINGS->objects.frame_locals + 8 * place);

    if (!SETTINGS->objects.tagged_references)
        return bits;
    return (bits & 3) == 3 ? 0 : bits & ~3ULL;
}

static __always_inline __u64 content_of_cell(__u64 cell)
{
    __u64 type = cell ? TAKE(__u64, cell + OBJECT_TYPE_POINTER) : 0;

    return type && type - TAKE(__u64, type + OBJECT_TYPE_POINTER) == SETTINGS->objects.cell_type ? TAKE(__u64, cell + CELL_CONTENT) : 0;
}

/* Up to 3.10: an argument that is in a cell and nowhere else. */
static __always_inline __u64 argument_in_cell(__u64 code, __u64 frame, __u32 place)
{
    __u64 argument_of = TAKE(__u64, code + SETTINGS->objects.code_cell_arguments);
    __u32 i;

#pragma clang loop unroll(disable)
    for (i = 0; argument_of && i < MOST_CELLS; i++) {
        if (i >= TAKE(__u64, TAKE(__u64, code + SETTINGS->objects.code_cells) + SIZE))
            return 0;
        if (TAKE(__u64, argument_of + 8 * i) == place)
            return content_of_cell(variable(frame, TAKE(__u32, code + SETTINGS->objects.code_locals) + i));
    }
    return 0;
}

static __always_inline __u64 argument(__u64 code, __u64 frame, __u32 place, int has_cells)
{
    __u64 object = variable(frame, place);

    if (SETTINGS->objects.code_kinds == ABSENT)
        return object ? object : argument_in_cell(code, frame, place);
    if (!has_cells || !(TAKE(__u8, TAKE(__u64, code + SETTINGS->objects.code_kinds) + BYTES_START + place) & IS_CELL))
        return object;
    return content_of_cell(object);
}

static __always_inline __u32 arguments_of(__u64 code)
{
    __u32 flags = TAKE(__u32, code + FRAMES->code_flags);
    __u32 count = TAKE(__u32, code + SETTINGS->objects.code_arguments) + TAKE(__u32, code + SETTINGS->objects.code_keyword_only);

    return count + !!(flags & TAKES_MORE) + !!(flags & TAKES_MORE_KEYWORDS);
}

/* Sends the names of a function's arguments: a record for each. */
static __always_inline void introduce_arguments(__u64 ts, __u64 pid_tgid, __u32 func, __u64 code, __u32 count)
{
    __u64 names = TAKE(__u64, code + SETTINGS->objects.code_variables) + SETTINGS->objects.tuple_items;
    __u32 i;

#pragma clang loop unroll(disable)
    for (i = 0; i < MOST_OBSERVED; i++) {
        if (ENDS(i, count))
            break;
        struct object_event *event = begin_object(ts, pid_tgid, func, OBJECT_NAME, i);

        if (!event)
            return;
        event->status = VALUE_COMPLETE;
        event->dtype = 0;
        event->type_length = 0;
        event->type_width = 0;
        if (take_text(event, TAKE(__u64, names + 8 * i)))
            event->status = VALUE_UNREAD;
        objects.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    }
}

/* What user space says of an observable function; it is introduced where it was not yet. */
static __always_inline __u64 decision_on(__u64 ts, __u64 pid_tgid, __u32 func, __u64 code, __u32 count)
{
    __u64 *decided = observed.lookup(&func), nothing = 0;

    if (decided)
        return *decided;
    introduce_arguments(ts, pid_tgid, func, code, count);
    observed.insert(&func, &nothing);
    return 0;
}

/* The arguments of a call are read by a program of its own, some at a time: in one with all that comes before, the verifier of Linux 6.1 would
 * have more than its million instructions to follow. A thread is in one call at a time. */
#define ARGUMENTS_A_STEP 4
BPF_PROG_ARRAY(observers, 1);
struct observing {
    __u64 ts;
    __u64 code;
    __u64 frame;
    __u64 decision;
    __u32 func;
    __u32 count;
    __u32 next;
    __u32 has_cells;
};
BPF_TABLE("lru_hash", __u32, struct observing, observings, 65536); /* by thread */

/* The arguments of a frame that was entered just now. Where it returns 1 the program is to go on with observers. */
static __always_inline int observe_arguments(__u64 ts, __u64 pid_tgid, __u32 func, __u64 frame, int of_generator)
{
    struct observing of = {.ts = ts, .code = code_of(FRAMES, frame), .frame = frame, .func = func};
    __u32 tid = pid_tgid;

    if (!of.code || !func)
        return 0;
    of.count = arguments_of(of.code);
    of.decision = decision_on(ts, pid_tgid, func, of.code, of.count);
    if (of.decision & NOT_OBSERVED || !of.count)
        return 0;
    if (of.count > MOST_OBSERVED) {
        count_losses(LOSS_VALUE_RING, of.count - MOST_OBSERVED);
        of.count = MOST_OBSERVED;
    }
    of.has_cells = SETTINGS->objects.cells_at_entry || of_generator;
    if (observings.update(&tid, &of)) {
        count_losses(LOSS_VALUE_RING, of.count);
        return 0;
    }
    return 1;
}

int arguments_step(struct pt_regs *ctx)
{
    __u64 pid_tgid = bpf_get_current_pid_tgid();
    __u32 tid = pid_tgid, i;
    struct observing *of = observings.lookup(&tid);

    if (!of) {
        count_losses(LOSS_VALUE_RING, 1);
        return 0;
    }
#pragma clang loop unroll(disable)
    for (i = 0; i < ARGUMENTS_A_STEP; i++) {
        __u32 place = of->next;

        if (place >= of->count)
            return 0;
        struct object_event *event = begin_object(of->ts, pid_tgid, of->func, VALUE_ARGUMENT, place);

        if (!event) {
            count_losses(LOSS_VALUE_RING, of->count - place);
            return 0;
        }
        of->next = place + 1;
        take_object(event, argument(of->code, of->frame, place, of->has_cells), of->decision >> (place & 63) & 1);
        objects.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    }
    if (of->next < of->count)
        observers.call(ctx, 0);
    return 0;
}

#define YIELD_VALUE 86 /* up to 3.11 */
#define WRAPPED 16     /* of what an asynchronous generator yields: the object that the program sees */

/* Of the instruction that a frame stands at that does not yield; up to 3.11 of any. */
static __always_inline int opcode_at(__u64 code, __u64 frame)
{
    const struct object_layout *known = &SETTINGS->objects;

    if (known->code_bytes == ABSENT)
        return TAKE(__u8, TAKE(__u64, frame + FRAMES->frame_position));
    return TAKE(__u8, TAKE(__u64, code + known->code_bytes) + BYTES_START + TAKE(__s32, frame + FRAMES->frame_position));
}

/* The state of the thread that holds the GIL, where it is the one that stands in the frame; 0 = that is not to be seen. */
static __always_inline __u64 thread_in(__u64 code, __u64 frame)
{
    const struct object_layout *known = &SETTINGS->objects;
    __u64 of_types = TAKE(__u64, TAKE(__u64, code + OBJECT_TYPE_POINTER) + OBJECT_TYPE_POINTER), thread = TAKE(__u64, of_types + known->gil), innermost;

    if (known->interpreter_gil != ABSENT)
        thread = TAKE(__u64, TAKE(__u64, thread + known->interpreter_gil) + known->gil_holder);
    innermost = TAKE(__u64, thread + known->thread_frame);
    if (known->cframe_frame != ABSENT)
        innermost = TAKE(__u64, innermost + known->cframe_frame);
    return innermost == frame ? thread : 0;
}

/* The object that was popped from the frame's stack last: it is not overwritten yet. */
static __always_inline __u64 popped(__u64 frame, int is_yield)
{
    const struct object_layout *known = &SETTINGS->objects;

    if (known->code_kinds == ABSENT) /* 3.9 */
        return TAKE(__u64, TAKE(__u64, frame + (is_yield ? FRAMES->frame_stacktop : known->frame_top)));
    if (!known->tagged_references) /* 3.11 */
        return variable(frame, TAKE(__u32, frame + known->frame_top));
    return TAKE(__u64, TAKE(__u64, frame + known->frame_top)) & ~3ULL;
}

/* The exception that is raised in a thread. Up to 3.11 it may be none yet, but its type, and what it is to be made of: an object or a tuple of these. */
static __always_inline void take_exception(struct object_event *to, __u64 thread, int redact)
{
    __u64 place = thread + SETTINGS->objects.thread_exception, exception = thread ? TAKE(__u64, place) : 0;

    if (SETTINGS->objects.is_3_12 || !exception) {
        take_object(to, exception, redact);
        return;
    }
    __u64 value = TAKE(__u64, place + 8), type = value ? TAKE(__u64, value + OBJECT_TYPE_POINTER) : 0;
    __u64 flags = type ? TAKE(__u32, type + TYPE_FLAGS) : 0, text = flags & IS_TEXT ? value : flags & IS_TUPLE ? first_text(value) : 0;

    take_object(to, value, redact || type != exception);
    if (type == exception)
        return;
    to->status = redact ? VALUE_REDACTED : VALUE_COMPLETE;
    take_type(to, exception, TAKE(__u32, exception + TYPE_FLAGS));
    if (!redact && text && take_text(to, text))
        to->status = VALUE_UNREAD;
}

/* Whether an exception leaves a frame that does not yield: it stands at no return. Up to 3.11 a trace function may have raised one
 * there; from 3.12 on code that is traced has instructions of its own. */
static __always_inline int is_raised(__u64 frame)
{
    const struct object_layout *known = &SETTINGS->objects;
    __u64 code = code_of(FRAMES, frame), thread;

    if (opcode_at(code, frame) != known->return_opcode)
        return 1;
    if (known->is_3_12)
        return 0;
    thread = thread_in(code, frame);
    return thread && TAKE(__u64, thread + known->thread_exception);
}

/* What leaves a frame. An object of which it is not sure that it is the one is not seen. */
static __always_inline void observe_result(__u64 ts, __u64 pid_tgid, __u32 func, __u64 frame, __u32 kind)
{
    const struct object_layout *known = &SETTINGS->objects;
    __u64 code = code_of(FRAMES, frame), decision, thread, object = 0, type;
    int is_yield = kind == CALL_YIELD, is_secret;
    struct object_event *event;

    if (!code || !func)
        return;
    decision = decision_on(ts, pid_tgid, func, code, arguments_of(code));
    if (decision & NOT_OBSERVED)
        return;
    event = begin_object(ts, pid_tgid, func, is_yield ? VALUE_YIELD : kind == CALL_UNWIND ? VALUE_RAISED : VALUE_RETURN, 0);
    if (!event) {
        count_loss(LOSS_VALUE_RING);
        return;
    }
    thread = thread_in(code, frame);
    is_secret = !!(decision & SECRET_RESULT);
    if (kind == CALL_UNWIND) {
        take_exception(event, thread, is_secret);
    } else {
        /* By `yield from` and `await` up to 3.10 what is yielded was on no stack. */
        if (known->is_3_12 || (thread && (!is_yield || known->code_kinds != ABSENT || opcode_at(code, frame) == YIELD_VALUE)))
            object = popped(frame, is_yield);
        type = is_yield && object ? TAKE(__u64, object + OBJECT_TYPE_POINTER) : 0;
        if (type && type - TAKE(__u64, type + OBJECT_TYPE_POINTER) == known->wrapped_type)
            object = TAKE(__u64, object + WRAPPED);
        take_object(event, object, is_secret);
    }
    objects.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

#endif
