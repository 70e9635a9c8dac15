/* The two event sources, sys.monitoring and the profile function, and what they share. */
#ifndef PYTRACE_HOOKS_H
#define PYTRACE_HOOKS_H

#include "arena.h"
#include "cpython.h"
#include "functions.h"

/* A source of events. All under the GIL. */
struct source {
    const char *(*start)(bool here); /* NULL, or the sentence that says why it cannot; here: in this thread too */
    void (*stop)(void);         /* removes every callback; harmless when there is none */
    void (*look)(void);         /* takes in threads that began unseen; NULL = there are none */
    void (*function_seen)(const char *file); /* NULL = of no interest */
};
extern const struct source monitoring, profile, *hooks;

static inline void hooks_function_seen(const char *file)
{
    if (UNLIKELY(hooks->function_seen != NULL))
        hooks->function_seen(file);
}

/* The frame's number in events. */
static inline uint32_t frame_number(const void *frame)
{
    return (uintptr_t)frame >> 3;
}

/* session.c. The calling thread's writer when it is not the one at hand: the thread's first event, a forked child, the
 * end. NULL = write nothing. `frame` is the event's, NULL = not known; with `entering`, frames outside it are open. */
struct writer *writer_for_event(void *frame, bool entering);

static inline struct writer *writer_here(void *frame, bool entering)
{
    struct writer *w = this_writer;
    if (UNLIKELY(w->session != recording))
        return writer_for_event(frame, entering);
    return w;
}

/* The same for what is no frame's own event: NULL also for a thread of which nothing is known yet. */
struct writer *writer_within_frame(void);

/* Deeper than asked for? Counts the depth as it goes. */
bool too_deep(struct writer *writer, bool entering);
extern uint32_t depth_bound;

static inline void enter(struct writer *w, struct function_entry *function, const void *frame, uint64_t kind)
{
    if (UNLIKELY(depth_bound) && too_deep(w, true))
        return;
    write_event(w, function->id, frame_number(frame), function->first_line, kind);
}

static inline void leave(struct writer *w, struct function_entry *function, const void *frame, uint32_t line, uint64_t kind)
{
    if (UNLIKELY(depth_bound) && too_deep(w, false))
        return;
    write_event(w, function->id, frame_number(frame), line, kind);
}

/* layers.c. All under the GIL. From now on collections are told; until then, and where it fails, they are not. */
void collections_start(void);
void collections_stop(void);
/* importlib's function begins or has ended, by `kind`: the import of a module is around it. */
void import_event(struct writer *writer, struct function_entry *function, const void *frame, uint32_t line, uint64_t kind);

/* frames.c. The innermost frame of a thread state, as events number frames; NULL = none or not known. */
void *innermost_frame(void *thread_state);
void *frame_behind(void *frame);
PyObject *code_of_frame(void *frame); /* NULL = not a Python frame */
/* Writes the frames from `innermost` out as open, outermost first. */
void write_open_frames(struct writer *writer, void *innermost);
/* Keeps a writer with its open frames for every thread of the main interpreter but this one. */
void keep_open_frames(void);
void keep_open_frames_of(void *thread_state);
/* Compares the offsets with the interpreter's own word, once; where they do not hold no frame is told from then on. */
void frames_verify(void);
extern bool frames_known;

#endif
