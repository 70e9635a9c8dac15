/* Calls of what is written in C, where options.c_calls asks for them. All under the GIL. */
#ifndef PYTRACE_C_CALLS_H
#define PYTRACE_C_CALLS_H

#include "arena.h"
#include "cpython.h"

/* A Python function is about to call, in `frame`, or has called. `kind`: CALL_RETURN or CALL_UNWIND. An end is written
 * where its begin was. Python's own functions and methods are not written: they have events of their own. */
void c_call_begins(struct writer *writer, PyObject *callable, const void *frame);
void c_call_ends(struct writer *writer, PyObject *callable, const void *frame, uint64_t kind);

/* Write the end of the call that `frame` has open, if any; forget what a thread has open. */
void c_call_cut(struct writer *writer, const void *frame);
void c_calls_forget(struct writer *writer);

#endif
