/* Reads qualified names out of running code, 3.8 to 3.10: LOAD_CONST of a code object, LOAD_CONST of its name, MAKE_FUNCTION.
 *
 * No source is asked, which may be another one by now. What is learned is kept by the code object's address, until other code that runs makes
 * a function of a code object there; the file, the bare name and the line must be the same as well. */
#include "qualnames.h"

#include <string.h>

#include "pages.h"

enum { STORE_NAME = 90, LOAD_CONST = 100, LOAD_NAME = 101, MAKE_FUNCTION = 132, EXTENDED_ARG = 144 }; /* the same in 3.8, 3.9 and 3.10 */
#define OPTIMIZED 1 /* CO_OPTIMIZED: a function's, not a class's or a module's */
#define LONGEST 4096
#define DEEPEST 50 /* functions in functions */
#define SLAB (256 << 10)
#define MOST_BYTES (16 << 20) /* of names */
#define LOCALS ".<locals>."

struct learned {
    PyObject *code;
    uint64_t identity;
    char *name;
    uint32_t room; /* of name */
};
static struct learned *table;
static size_t mask, used, bytes, slab_left;
static char *slab;
static char own_name[LONGEST]; /* of the code that was looked at last */
static PyObject *own_code;

static struct learned *place_of(PyObject *code)
{
    size_t i = ((uintptr_t)code * 0x9e3779b97f4a7c15ull) >> 32 & mask;
    while (table[i].code && table[i].code != code)
        i = (i + 1) & mask;
    return &table[i];
}

static bool grow(void)
{
    size_t old_size = table ? mask + 1 : 0, size = table ? 2 * old_size : 4096;
    struct learned *old = table, *bigger = pages(size * sizeof *bigger);
    if (!bigger)
        return false;
    table = bigger;
    mask = size - 1;
    for (size_t i = 0; i < old_size; i++)
        if (old[i].code)
            *place_of(old[i].code) = old[i];
    if (old)
        munmap(old, old_size * sizeof *old);
    return true;
}

/* Room for a name; NULL = there is no more. */
static char *room_for(size_t size)
{
    if (size > slab_left) {
        char *more = bytes + SLAB > MOST_BYTES ? NULL : pages(SLAB);
        if (!more)
            return NULL;
        bytes += SLAB;
        slab = more;
        slab_left = SLAB;
    }
    char *room = slab;
    slab += size;
    slab_left -= size;
    return room;
}

/* True where that was not known yet. */
static bool keep(PyObject *code, uint64_t identity, const char *name, size_t length)
{
    if (used * 2 >= mask && !grow())
        return false;
    struct learned *at_place = place_of(code);
    if (at_place->code && at_place->identity == identity && !strcmp(at_place->name, name))
        return false;
    used += !at_place->code;
    at_place->code = code;
    at_place->identity = 0;
    if (at_place->room <= length) {
        at_place->name = room_for(length + 1);
        at_place->room = at_place->name ? length + 1 : 0;
    }
    if (!at_place->name)
        return false;
    memcpy(at_place->name, name, length + 1);
    at_place->identity = identity;
    return true;
}

void qualnames_forget(void)
{
    if (table)
        memset(table, 0, (mask + 1) * sizeof *table);
    used = 0; /* the names stay until there is another use for their room: there is none, and a program has few sessions */
    own_code = NULL;
}

uint64_t qualnames_identity(const char *file, const char *name, uint32_t first_line)
{
    const char *text[2] = {file, name};
    uint64_t hash = 0xcbf29ce484222325ull ^ first_line;
    for (int i = 0; i < 2; i++)
        for (const char *c = text[i];; c++) {
            hash = (hash ^ (unsigned char)*c) * 0x100000001b3ull;
            if (!*c)
                break;
        }
    return hash | 1; /* 0 = nothing is known */
}

/* An attribute that is an object which the code object owns: borrowed. NULL, without an exception, for anything else. */
static PyObject *part_of(PyObject *code, const char *name)
{
    PyObject *part = py.PyObject_GetAttrString(code, name);
    if (part)
        py.Py_DecRef(part);
    else
        py.PyErr_Clear();
    return part;
}

/* NULL, without an exception, for what is no text of UTF-8, or too long. */
static const char *text_of(PyObject *object, size_t *length)
{
    Py_ssize_t size;
    const char *text = object && type_of(object) == py.string_type ? py.PyUnicode_AsUTF8AndSize(object, &size) : NULL;
    if (!text) {
        py.PyErr_Clear();
        return NULL;
    }
    *length = size;
    return size < LONGEST && !memchr(text, 0, size) ? text : NULL;
}

static PyObject *item(PyObject *tuple, uint32_t place)
{
    return (Py_ssize_t)place < py.PyTuple_Size(tuple) ? py.PyTuple_GetItem(tuple, place) : NULL;
}

static bool ends_with(const char *text, size_t length, const char *end, size_t end_length)
{
    return length >= end_length && !memcmp(text + length - end_length, end, end_length);
}

static void set_own_name(const char *name, size_t length)
{
    memcpy(own_name, name, length);
    own_name[length] = 0;
}

static void learn(PyObject *code, int depth);

/* `made` is to become a function called `qualname`; where its name stands below that of the code that runs (depth 0), this has one too. */
static void meet(PyObject *made, PyObject *qualname, int depth)
{
    size_t length, name_length, file_length;
    const char *text = text_of(qualname, &length), *name = text_of(part_of(made, "co_name"), &name_length);
    const char *file = text_of(part_of(made, "co_filename"), &file_length);
    if (!text || !name || !file || !ends_with(text, length, name, name_length))
        return;
    if (keep(made, qualnames_identity(file, name, long_attribute(made, "co_firstlineno") & 0x1ffffff), text, length) && depth < DEEPEST)
        learn(made, depth + 1);
    length -= name_length;
    if (!depth && !own_name[0] && ends_with(text, length, LOCALS, strlen(LOCALS)))
        set_own_name(text, length - strlen(LOCALS));
}

/* A class's code begins with: __module__ = __name__; __qualname__ = its name. */
static void read_class(const uint8_t *code, Py_ssize_t size, PyObject *constants, PyObject *names)
{
    size_t length;
    if (size < 8 || code[0] != LOAD_NAME || code[2] != STORE_NAME || code[4] != LOAD_CONST || code[6] != STORE_NAME)
        return;
    const char *target = text_of(item(names, code[7]), &length);
    const char *name = target && !strcmp(target, "__qualname__") ? text_of(item(constants, code[5]), &length) : NULL;
    if (name)
        set_own_name(name, length);
}

static void read_code(const uint8_t *code, Py_ssize_t size, PyObject *constants, int depth)
{
    PyObject *last[2] = {NULL, NULL}; /* what the two instructions before load, the newest first */
    uint32_t extended = 0;
    for (Py_ssize_t i = 0; i + 1 < size; i += 2) {
        uint32_t argument = extended << 8 | code[i + 1];
        extended = code[i] == EXTENDED_ARG ? argument : 0;
        if (code[i] == EXTENDED_ARG)
            continue;
        if (code[i] == MAKE_FUNCTION && last[0] && last[1] && type_of(last[1]) == py.code_type)
            meet(last[1], last[0], depth);
        last[1] = last[0];
        last[0] = code[i] == LOAD_CONST ? item(constants, argument) : NULL;
    }
}

/* What runs already when the agent comes made its functions before, and these theirs: so all that is in it is learned. */
static void learn(PyObject *code, int depth)
{
    PyObject *constants = part_of(code, "co_consts"), *names = part_of(code, "co_names"), *bytecode = part_of(code, "co_code");
    const uint8_t *bytes_of_code = constants && names && bytecode ? (const uint8_t *)py.PyBytes_AsString(bytecode) : NULL;
    if (!bytes_of_code)
        return;
    Py_ssize_t size = py.PyBytes_Size(bytecode);
    if (!depth && !(long_attribute(code, "co_flags") & OPTIMIZED))
        read_class(bytes_of_code, size, constants, names);
    read_code(bytes_of_code, size, constants, depth);
}

void qualnames_learn(PyObject *code)
{
    own_code = code;
    own_name[0] = 0;
    learn(code, 0);
}

const char *qualname_of(PyObject *code, const char *name, uint64_t identity)
{
    size_t length = strlen(own_name), name_length = strlen(name);
    /* First, as of a class the compiler puts the bare name beside the code object. */
    if (own_code == code && ends_with(own_name, length, name, name_length) && (length == name_length || own_name[length - name_length - 1] == '.'))
        return own_name;
    struct learned *known = table ? place_of(code) : NULL;
    return known && known->code && known->identity == identity ? known->name : "";
}
