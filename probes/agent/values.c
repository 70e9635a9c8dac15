/* Writes what the observed functions are given, when they are entered, and what leaves them: a record for each object.
 *
 * The variables of a frame begin with its arguments, in the order of co_varnames. One that an inner function uses is in a cell by
 * then: from 3.11 on that is in the variable's place, before behind all variables. */
#include "values.h"

#include <string.h>

#include "cpython.h"
#include "objects.h"

#define TAKES_MORE 0x4          /* CO_VARARGS */
#define TAKES_MORE_KEYWORDS 0x8 /* CO_VARKEYWORDS */
#define IS_CELL 0x40            /* CO_FAST_CELL of co_localspluskinds */
#define CELL_CONTENT 16
#define WRAPPED 16              /* of what an asynchronous generator yields: the object that the program sees */

static int int_at(const void *base, int offset)
{
    return *(const int *)((const char *)base + offset);
}

/* An object of a frame's variables; NULL = none. From 3.14 on the low bits are a tag, and with both of them it is no object. */
static PyObject *variable(const void *frame, int64_t place)
{
    uintptr_t bits = (uintptr_t)pointer_at((const char *)frame + at->frame_locals, 8 * place);
    if (py.version < 0x030e0000)
        return (PyObject *)bits;
    return (bits & 3) == 3 ? NULL : (PyObject *)(bits & ~(uintptr_t)3);
}

static PyObject *content_of(PyObject *cell)
{
    return cell && cell->type == py.cell_type ? pointer_at(cell, CELL_CONTENT) : NULL;
}

/* Up to 3.10: an argument that is in a cell and nowhere else. */
static PyObject *argument_in_cell(const void *code, const void *frame, int place)
{
    const Py_ssize_t *argument_of = pointer_at(code, at->code_cell_arguments);
    Py_ssize_t cells = argument_of ? tuple_size(pointer_at(code, at->code_cells)) : 0;
    for (Py_ssize_t i = 0; i < cells; i++)
        if (argument_of[i] == place)
            return content_of(variable(frame, int_at(code, at->code_locals) + i));
    return NULL;
}

static PyObject *argument(const void *code, const void *frame, int place)
{
    PyObject *object = variable(frame, place);
    if (at->code_kinds < 0)
        return object ? object : argument_in_cell(code, frame, place);
    const unsigned char *kinds = bytes_of(pointer_at(code, at->code_kinds));
    return kinds[place] & IS_CELL ? content_of(object) : object;
}

static int arguments_of(const void *code)
{
    int flags = int_at(code, at->code_flags);
    return int_at(code, at->code_arguments) + int_at(code, at->code_keyword_only) + !!(flags & TAKES_MORE) + !!(flags & TAKES_MORE_KEYWORDS);
}

bool argument_named(const struct function_entry *function, const void *frame, const char *name, PyObject **object)
{
    PyObject *names = pointer_at(function->code, at->code_variables);
    int count = arguments_of(function->code);
    char text[64];
    size_t size;
    bool cut = false;
    for (int i = 0; i < count && count <= tuple_size(names); i++)
        if (object_text(tuple_item(names, i), text, sizeof text, &size, &cut) && size == strlen(name) && !memcmp(text, name, size)) {
            *object = argument(function->code, frame, i);
            return true;
        }
    return false;
}

static void fill(struct value *value, PyObject *object, const struct function *name, int position, uint8_t what, bool redact)
{
    value->name = name ? name->id : 0;
    value->position = position;
    value->what = what;
    object_describe(value, object, redact);
}

void write_arguments(struct writer *w, const struct function_entry *function, const void *frame)
{
    const void *code = function->code;
    int count = arguments_of(code);
    PyObject *names = pointer_at(code, at->code_variables);
    /* All of a call's, or none. */
    struct value *values = objects_known && count && count <= tuple_size(names) ? room_for_values(w, count) : NULL;
    if (!values)
        return;
    for (int i = 0; i < count; i++) {
        const struct function *name = name_of_text(tuple_item(names, i));
        fill(&values[i], argument(code, frame, i), name, i, VALUE_ARGUMENT, !name || name->flags);
    }
    values_written(w, count);
}

void write_result(struct writer *w, const struct function_entry *function, PyObject *object, uint64_t kind)
{
    if (!objects_known || (!object && kind != CALL_UNWIND))
        return;
    uint8_t what = kind == CALL_UNWIND ? VALUE_RAISED : kind == CALL_YIELD ? VALUE_YIELD : VALUE_RETURN;
    if (what == VALUE_YIELD && is_static_type(object->type, "async_generator_wrapped_value"))
        object = pointer_at(object, WRAPPED);
    struct value *value = room_for_values(w, 1);
    if (!value)
        return;
    fill(value, object, NULL, 0, what, function->secret);
    values_written(w, 1);
}

void write_raised(struct writer *w, const struct function_entry *function, PyObject *type, PyObject *content)
{
    struct value *value = objects_known ? room_for_values(w, 1) : NULL;
    if (!value)
        return;
    fill(value, NULL, NULL, 0, VALUE_RAISED, function->secret);
    if (type)
        object_describe_raised(value, type, content, function->secret);
    values_written(w, 1);
}
