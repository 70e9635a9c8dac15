/* The two event sources: sys.monitoring, and the profile function. */
#ifndef PYTRACE_SOURCES_H
#define PYTRACE_SOURCES_H

#include <stdbool.h>

#include "opcodes.h"

/* A source of events. All under the GIL. */
struct source {
    const char *(*start)(bool here); /* NULL, or the sentence that says why it cannot; here: in this thread too */
    void (*stop)(void);         /* removes every callback; harmless when there is none */
    void (*look)(void);         /* takes in threads that began unseen; NULL = there are none */
    void (*pause)(bool on);     /* no events come while it is on */
    void (*again)(void);        /* events come again from where it was said that none is wanted; NULL = they came all the time */
    void (*function_seen)(const char *file); /* NULL = of no interest */
    void (*runs)(PyObject *code); /* a frame of this code runs that was on no thread's stack when it started; NULL = it reports as others do */
    report_instructions report; /* NULL = each frame is asked for them */
    uint32_t (*taken)(void);    /* threads whose events have stopped to come since the program took them for another tool; NULL = no tool can */
};
extern const struct source monitoring, profile;

/* The interpreter is gone, and all objects with it. */
void monitoring_forget(void);

struct interpreter;
/* The program takes every id of sys.monitoring: there is none left for the agent, which is to leave at once. */
extern void (*monitoring_taken)(void);
/* On a thread of an interpreter beside the main one, whose GIL it has: its calls are reported from now on, no more, or again from where it was
 * said that none is wanted. False: they cannot be. */
bool monitoring_enters(struct interpreter *in);
void monitoring_leaves(struct interpreter *in);
void monitoring_again(void);

#endif
