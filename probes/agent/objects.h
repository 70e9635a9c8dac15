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
/* The same of an exception that may not be made yet: of such a type, and of what it is to be made, NULL = nothing. */
void object_describe_raised(struct value *value, PyObject *type, PyObject *content, bool redact);
/* The record of a name that is a str; NULL where there is no room. */
const struct function *name_of_text(PyObject *text);
/* A str, or of bytes what is ASCII, in `to`: `size` bytes of UTF-8, at most `room`; `cut` is set where that is not all. False of any other object. */
bool object_text(PyObject *object, char *to, size_t room, size_t *size, bool *cut);
/* How many items a list or a tuple has, and where they are; -1 of any other object, NULL = none. */
Py_ssize_t items_of(PyObject *object, PyObject *const **items);
bool is_dict(PyObject *object);
/* So many hexadecimal digits of an int; false where it has more, is 0 or below, or is none. */
bool int_hexadecimal(PyObject *object, char *to, size_t digits);
/* The qualified name of its type; "?" where there was no room for it. */
const char *type_name(PyObject *object);
bool is_static_type(const void *type, const char *name);
#define TYPE_FLAGS 168 /* PyTypeObject.tp_flags */
bool is_exception(const PyObject *object);
/* Of an object whose own type can be read. */
bool is_exception_type(const PyObject *object);
/* The traceback of an exception; NULL = it has none, or is no exception. */
PyObject *exception_traceback(PyObject *exception);
/* The line where the newest entry of a traceback stands, which is of this code; 0 = not known. */
uint32_t traceback_line(const PyObject *traceback, PyObject *code);
/* Whether so many bytes, a page at most, are there: asked of the kernel, by a call that Python makes too and that does nothing. */
bool is_there(const void *address, size_t size);

static inline Py_ssize_t tuple_size(const void *tuple)
{
    return *(const Py_ssize_t *)((const char *)tuple + 16);
}

static inline PyObject *tuple_item(const void *tuple, Py_ssize_t place)
{
    return pointer_at((const char *)tuple + at->tuple_items, 8 * place);
}

/* The frame object of its newest entry. */
static inline PyObject *traceback_frame(const PyObject *traceback)
{
    return pointer_at(traceback, 24);
}

static inline const unsigned char *bytes_of(const void *bytes)
{
    return (const unsigned char *)bytes + 32;
}

#endif
