/* What the GIL is elsewhere: the certainty that no other thread runs Python, or is in the midst of the agent's own work.
 *
 * With a GIL whoever holds it has that certainty. Without one the threads are stopped for a moment, and those that wait within
 * the agent, where it asks the interpreter for something, are waited for. */
#ifndef PYTRACE_WORLD_H
#define PYTRACE_WORLD_H

#include <stdbool.h>

/* Attached to the interpreter, which is to say with the GIL where there is one. Calls `act` while no other thread runs Python; each of them
 * stands where it may let others go first. False: they could not be stopped, and `act` was not called. */
bool world_stopped(void (*act)(void));
/* Attached. One thread at a time begins or ends a session: the GIL's other service. world_stopped() and world_leaves_agent() come in between. */
void world_claim(void);
void world_release(void);
/* Attached. Returns once no thread is within the agent, nor will be: `recording` is 0. */
void world_leaves_agent(void);
/* Around what a thread does in a callback and that may let others go first, such as to ask the interpreter for an attribute. */
void within_agent(bool enters);
/* In a forked child, on the thread that forked: the others are gone. */
void world_after_fork(void);

#endif
