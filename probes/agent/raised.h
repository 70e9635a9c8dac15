/* Finds the exception that leaves a frame, CPython 3.8 to 3.11. Under the GIL. */
#ifndef PYTRACE_RAISED_H
#define PYTRACE_RAISED_H

#include "cpython.h"

/* Of CPython, each NULL up to 3.11 where there is none: up to then an exception may not be made yet, and `value` is what it is to be made of. */
struct raised {
    PyObject *type, *value, *traceback;
};

/* In the profile function's event for `frame`, a frame object that an exception leaves: false where it is not known. `stack`: that function's
 * __builtin_frame_address(0), in whose frame all registers are that its caller may have in use. */
bool raised_find(struct raised *raised, PyObject *const *stack, const PyObject *frame);

#endif
