/* The interpreters that the program makes beside its main one, from 3.12 on, where each may have a GIL of its own.
 *
 * What the main interpreter's GIL is for the rest of the agent nobody has for all of them. So they share what several threads may use at
 * once without a GIL (arena.h), each has a tool of sys.monitoring of its own, and each is entered and left on threads of its own: to make a
 * thread state for the agent's thread in one that may be ending just then would have CPython end the program ("not the last thread"). */
#ifndef PYTRACE_INTERPRETERS_H
#define PYTRACE_INTERPRETERS_H

#include <stdbool.h>

#include "whose.h"

struct writer;

/* Main GIL held. The session records: those that are there and those that come report to it. */
void interpreters_begin(void);
/* Main GIL held. Those that came since the last time are told. */
void interpreters_look(void);
/* Whether there are any that were not told. */
bool interpreters_came(void);
/* None begins any more; those that report leave when they would report next. */
void interpreters_end(void);
/* `recording` is 0, no GIL is held. Returns once none of them writes; false: one still does after some seconds. */
bool interpreters_left(void);
/* There are none: in a forked child, and where the main one was finalized. */
void interpreters_forget(void);
/* The running one; NULL = it is the main one, or reports nothing. */
struct interpreter *interpreters_running(void);
/* An audit event, on a thread that runs Python. */
void interpreters_hear(const char *event);
/* It may be heard. */
extern bool interpreters_listen;
/* Adds the hook that hears audit events, where there is none yet. */
extern void (*interpreters_ask_to_hear)(void);

/* In a callback of that interpreter's, for an event of `frame`. The thread's writer, interpreters_leave() is to follow; NULL = write nothing. */
struct writer *interpreter_enters(struct interpreter *in, PyObject *callback, void *frame, bool entering);
void interpreter_leaves(struct interpreter *in, struct writer *writer);

#endif
