/* What an object is, read from its memory: no code of the program runs, and nothing is allocated by the interpreter. Under the GIL. */
#ifndef PYTRACE_OBJECTS_H
#define PYTRACE_OBJECTS_H

#include "agent.h"
#include "cpython.h"

/* Whether objects lie in memory as those of this version do. */
extern bool objects_known;
/* Finds that out. */
void objects_verify(void);
/* Fill in what `value` says of an object, NULL = it is not known; `redact`: its type alone. */
void object_describe(struct value *value, PyObject *object, bool redact);
/* The record of a name that is a str; NULL where there is no room. */
const struct function *name_of_text(PyObject *text);
bool is_static_type(const void *type, const char *name);
/* From 3.11 on: the traceback of an exception; NULL = it has none, or is no exception. */
void *exception_traceback(PyObject *exception);

static inline Py_ssize_t tuple_size(const void *tuple)
{
    return *(const Py_ssize_t *)((const char *)tuple + 16);
}

static inline PyObject *tuple_item(const void *tuple, Py_ssize_t place)
{
    return pointer_at((const char *)tuple + at->tuple_items, 8 * place);
}

static inline const unsigned char *bytes_of(const void *bytes)
{
    return (const unsigned char *)bytes + 32;
}

#endif
