/* What an event takes of the program that is traced: a few of all events are timed where they happen, at places that no rhythm of the program's can meet. */
#ifndef PYTRACE_TIMING_H
#define PYTRACE_TIMING_H

#include "arena.h"
#include "build.h"

/* GIL held. The stamp from which on this event is timed; 0: it is not, but may end the time since the one before. */
uint64_t timing_begins(void);
/* It is done. `code`: from now on Python's code runs, and no C function that the thread's next event ends. */
void timing_ends(uint64_t began, bool code);

static inline uint64_t timing_begun(void)
{
    return UNLIKELY(--this_writer->untimed == 0) ? timing_begins() : 0;
}

#endif
