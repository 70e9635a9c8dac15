/* Writes calls of what is written in C, and keeps which of them each thread has open. */
#define _GNU_SOURCE
#include "c_calls.h"

#include <string.h>
#include <sys/mman.h>

#include "c_names.h"
#include "calls.h"

#define FIRST_ROOM (4096 / sizeof(struct c_call))

static bool make_room(struct writer *w)
{
    size_t room = w->c_calls_room ? 2 * (size_t)w->c_calls_room : FIRST_ROOM, size = room * sizeof *w->c_calls;
    struct c_call *calls = w->c_calls ? mremap(w->c_calls, size / 2, size, MREMAP_MAYMOVE)
                                      : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (calls == MAP_FAILED)
        return false;
    w->c_calls = calls;
    w->c_calls_room = room;
    return true;
}

void c_call_begins(struct writer *w, PyObject *callable, const void *frame)
{
    bool deep = options.max_depth && w->depth >= options.max_depth;
    uint32_t function = !deep && is_written_in_c(callable) ? c_function(callable) : 0;
    if (!function || function_is_left_out(function) || (w->c_calls_open == w->c_calls_room && !make_room(w))) {
        arena_passed();
        return;
    }
    uint32_t line = frame ? line_of(frame) : 0;
    if (UNLIKELY(stacks_switch) && frame)
        stacks_enter(w, (void *)frame, number_of_call(frame), function, line);
    too_deep(w, true); /* what it calls is one deeper */
    w->c_calls[w->c_calls_open++] = (struct c_call){number_of_call(frame), function};
    write_event(w, function, number_of_call(frame), line, CALL_ENTRY);
}

/* Its own is the last one, but where stacks are switched (greenlets). */
static void end(struct writer *w, const void *frame, uint64_t kind)
{
    uint32_t number = number_of_call(frame), i = w->c_calls_open;
    while (i && w->c_calls[i - 1].frame != number)
        i--;
    if (!i)
        return;
    uint32_t function = w->c_calls[i - 1].function;
    memmove(w->c_calls + i - 1, w->c_calls + i, (--w->c_calls_open - (i - 1)) * sizeof *w->c_calls);
    if (UNLIKELY(stacks_switch) && frame)
        stacks_leave(w, (void *)frame, number);
    if (!too_deep(w, false))
        write_event(w, function, number, 0, kind);
}

void c_call_ends(struct writer *w, PyObject *callable, const void *frame, uint64_t kind)
{
    if (is_written_in_c(callable))
        end(w, frame, kind);
}

void c_call_cut(struct writer *w, const void *frame)
{
    end(w, frame, CALL_RETURN);
}

void c_calls_forget(struct writer *w)
{
    w->c_calls_open = 0;
}
