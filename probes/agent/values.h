/* Writes what the observed functions are given and return. All under the GIL. */
#ifndef PYTRACE_VALUES_H
#define PYTRACE_VALUES_H

#include "arena.h"
#include "functions.h"

/* The arguments of a frame that was entered just now: they belong to the writer's last event. */
void write_arguments(struct writer *writer, const struct function_entry *function, const void *frame);
/* The argument of this name of such a frame, NULL = it is unbound by now; false where the function takes none. */
bool argument_named(const struct function_entry *function, const void *frame, const char *name, PyObject **object);
/* What ended a call as `kind` says (CALL_*); NULL: it is not known. */
void write_result(struct writer *writer, const struct function_entry *function, PyObject *object, uint64_t kind);
/* The exception that ended a call, which may not be made yet: its type, NULL = not known, and what it is to be made of, or it itself. */
void write_raised(struct writer *writer, const struct function_entry *function, PyObject *type, PyObject *content);

#endif
