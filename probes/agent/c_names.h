/* Which callables are written in C, and what they are called: `time.sleep`, `list.append`, `int`. */
#ifndef PYTRACE_C_NAMES_H
#define PYTRACE_C_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "cpython.h"

#define TYPE_FLAGS 168     /* PyTypeObject */
#define TYPE_METHODS 232
#define HEAP_TYPE (1 << 9) /* a flag: made while the program runs, as every class is that is written in Python */

/* What Python code calls: no function or method of Python's own, and no class or instance of a class that may be. */
static inline bool is_written_in_c(PyObject *callable)
{
    if (callable->type == py.function_type || callable->type == py.method_type)
        return false;
    void *type = callable->type == py.type_type ? callable : callable->type;
    return !(*(unsigned long *)((char *)type + TYPE_FLAGS) & HEAP_TYPE);
}

/* The id of one that is_written_in_c, under which its events are written; 0 where there is no room or it has no name. */
uint32_t c_function(PyObject *callable);

#endif
