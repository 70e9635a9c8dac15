/* The frames that are open on the threads' stacks. */
#ifndef PYTRACE_FRAMES_H
#define PYTRACE_FRAMES_H

#include "arena.h"
#include "cpython.h"

/* The innermost frame of a thread state; NULL = none or not known. */
void *innermost_frame(void *thread_state);
/* Writes the frames from `innermost` out as open, outermost first. */
void write_open_frames(struct writer *writer, void *innermost);
/* Keeps a writer with its open frames for every thread of the main interpreter; `own`: for this one, too. */
void keep_open_frames(bool own);
void keep_open_frames_of(void *thread_state);
/* Compares the offsets with the interpreter's own word, once; where they do not hold no frame is reported from then on. */
void frames_verify(void);
extern bool frames_known;

#endif
