/* Which writer the calling thread has: its own, one that was kept for it, or a new one. */
#ifndef PYTRACE_THREADS_H
#define PYTRACE_THREADS_H

#include "arena.h"
#include "build.h"

/* The session's, while a forked child has the hooks of its parent and has not decided yet whether it is traced; else NULL. */
extern void (*settle_child)(void);

/* The calling thread's writer when it is not the one at hand: the thread's first event, a forked child, the end.
 * NULL = write nothing. `frame` is the event's, NULL = not known; with `entering`, frames outside it are open. */
struct writer *writer_for_event(void *frame, bool entering);

/* What is to be done from time to time, before an event is reported; it may end the session. */
extern void (*look_around)(void);
struct writer *writer_once_looked(void *frame, bool entering);

static inline struct writer *writer_here(void *frame, bool entering)
{
    struct writer *w = this_writer;
    if (UNLIKELY(w->session != recording))
        return writer_once_looked(frame, entering);
    return w;
}

/* The same for what is no frame's own event: NULL also for a thread of which nothing is known yet. */
struct writer *writer_within_frame(void);

#endif
