/* Of which interpreter a call is that a thread writes, where it is none of the main one's: see interpreters.c. */
#ifndef PYTRACE_WHOSE_H
#define PYTRACE_WHOSE_H

#include <stdbool.h>
#include <stdint.h>

#include "cpython.h"

struct interpreter {
    void *state; /* PyInterpreterState; NULL = it is gone */
    int64_t id;
    uint32_t number;    /* among all, from 1 */
    uint32_t within;    /* callbacks that run; changed under its GIL */
    uint64_t session;   /* whose events it reports; under its GIL */
    int tool;           /* of its sys.monitoring; below 0 = none */
    bool entering;      /* a thread of its own is at it */
    bool over;          /* it ends, and reports no more */
    PyObject *exit_function, *last; /* last: the callback that ran when the tool was given back */
    struct interpreter *next;
};

/* On a thread that writes a call of such an interpreter: it, and its number. */
extern _Thread_local struct interpreter *interpreter_here __attribute__((tls_model("initial-exec")));
extern _Thread_local uint32_t owner_here __attribute__((tls_model("initial-exec")));

#endif
