/* Writes the events of calls, down to the depth that was asked for. */
#ifndef PYTRACE_CALLS_H
#define PYTRACE_CALLS_H

#include "arena.h"
#include "callers.h"
#include "clients.h"
#include "functions.h"
#include "opcodes.h"
#include "options.h"
#include "stacks.h"
#include "values.h"
#include "whose.h"

static inline void write_line(struct writer *w, const struct function_entry *function, const void *frame, uint32_t line, uint64_t kind)
{
    if (LIKELY(!options.max_depth || w->depth <= options.max_depth))
        write_event(w, function->id, frame_number(frame), line, kind);
}

/* The line that a frame stands at which did not begin just now. */
static inline void write_place(struct writer *w, const struct function_entry *function, const void *frame)
{
    uint32_t line = frame ? line_of(frame) : 0;
    write_line(w, function, frame, line == NO_CALLER ? 0 : line, EVENT_STANDS);
}

static inline void write_given(struct writer *w, const struct function_entry *function, const void *frame)
{
    if (function->observed & OF_CLIENT)
        write_statement(w, function, frame);
    if (function->observed & OF_ARGS)
        write_arguments(w, function, frame);
}

static inline void enter(struct writer *w, struct function_entry *function, const void *frame, uint64_t kind)
{
    if (UNLIKELY(stacks_switch) && frame && !owner_here)
        stacks_enter(w, (void *)frame, frame_number(frame), function->id, line_called_from(frame));
    bool written = !too_deep(w, true) && write_event(w, function->id, frame_number(frame), line_called_from(frame), kind);
    if (UNLIKELY(function->observed) && written && kind == CALL_ENTRY && frame)
        write_given(w, function, frame);
    if (UNLIKELY(function->lined) && written && kind != CALL_ENTRY)
        write_place(w, function, frame);
}

/* Is what ended the call to be written as well? */
static inline bool left(struct writer *w, struct function_entry *function, const void *frame, uint32_t line, uint64_t kind)
{
    if (UNLIKELY(function->executes))
        opcodes_leave(w, function, kind != CALL_UNWIND, (void *)frame);
    if (UNLIKELY(stacks_switch) && frame && !owner_here)
        stacks_leave(w, (void *)frame, frame_number(frame));
    bool written = !too_deep(w, false) && write_event(w, function->id, frame_number(frame), line, kind);
    return UNLIKELY(function->observed & OF_ARGS) && written;
}

/* `value`: what it returns, yields or is left by, where that is known. */
static inline void leave(struct writer *w, struct function_entry *function, const void *frame, uint32_t line, uint64_t kind, PyObject *value)
{
    if (left(w, function, frame, line, kind))
        write_result(w, function, value, kind);
}

#endif
