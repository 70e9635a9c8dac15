/* A session in this process: from its beginning until the tracer stops it, is gone, or the interpreter ends. */
#ifndef PYTRACE_SESSION_H
#define PYTRACE_SESSION_H

/* Begin on the calling thread, which holds the GIL and belongs to the program. */
void session_begin_here(const char *directory);
/* Begin from a thread of the agent's own; returns at once. 0, or -1 when a session is on already. */
int session_begin(const char *directory);
/* Who is told that the interpreter is gone, and a tracer is still there: a program that embeds Python may make another. */
extern void (*session_interpreter_gone)(const char *directory);

#endif
