/* Functions whose calls are not written for a time, because tracing them costs the program too much. */
#ifndef PYTRACE_LEFT_OUT_H
#define PYTRACE_LEFT_OUT_H

#include "functions.h"
#include "sources.h"

/* GIL held. A session begins, with nothing left out; the hooks of a forked child's parent shall see everything again. */
void left_out_begin(const struct source *inherited);
/* Whether the tracer has a new list. */
bool left_out_asked(void);
/* GIL held. Follow the new list. */
void left_out_follow(const struct source *hooks);
/* GIL held. The entry of a function that function_of leaves out, of which this event is to be written all the same; else NULL. */
struct function_entry *left_out_written(PyObject *code, const void *frame, bool entering);
/* Whether ends of such a function are still to be looked at: of calls that are odd, or as it is back. */
bool left_out_waits(PyObject *code);

#endif
