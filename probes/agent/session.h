/* A session in this process: from its beginning until the tracer stops it, is gone, or the interpreter ends. */
#ifndef PYTRACE_SESSION_H
#define PYTRACE_SESSION_H

#include <stdbool.h>

/* Begin on the calling thread, which holds the GIL and belongs to the program. */
void session_begin_here(const char *directory);
/* Do what the tracer asks for, which threads that run Python do by themselves: now, within a pending call of the interpreter's, or soon, on any
 * thread that holds no lock. False: that cannot be. */
bool session_look(bool pending);
/* The same, and begin a session. False also where there is one. */
bool session_begin(const char *directory, bool pending);
/* Who is told that the interpreter is gone, and a tracer is still there: a program that embeds Python may make another. */
extern void (*session_interpreter_gone)(const char *directory);

#endif
