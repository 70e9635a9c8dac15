/* Finds the names of callables that are written in C, without running any code of the program's. */
#include "c_names.h"

#include <stdio.h>
#include <string.h>

#include "arena.h"
#include "functions.h"

/* The same in every version. */
enum { TYPE_NAME = 24, TYPE_BASE = 256 };                                    /* PyTypeObject: tp_... */
enum { FUNCTION_METHOD = 16, FUNCTION_SELF = 24, FUNCTION_MODULE = 32 };    /* PyCFunctionObject: m_... */
enum { DESCRIPTOR_TYPE = 16, DESCRIPTOR_NAME = 24, DESCRIPTOR_METHOD = 40 }; /* PyMethodDescrObject, PyWrapperDescrObject: d_... */
enum { WRAPPER_DESCRIPTOR = 16 };                                           /* wrapperobject: descr */
#define TYPE_SUBCLASS (1ul << 31)                                           /* a flag: its instances are types */
#define REMEMBERED 4096

/* A name by what it was made of, which lives as long as the library that it lies in. */
static struct remembered {
    const void *what;
    const char *name;
    uint64_t session;
    uint32_t id;
} remembered[REMEMBERED];

struct name {
    const void *what;        /* stands for the callable; NULL: nothing does for as long as it could be remembered */
    const char *owner, *own; /* the type's or the module's, "" for none */
};

static const char *name_of_type(const void *type)
{
    return pointer_at(type, TYPE_NAME);
}

static const char *text_of(PyObject *string)
{
    const char *text = string && string->type == py.string_type ? py.PyUnicode_AsUTF8AndSize(string, NULL) : NULL;
    py.PyErr_Clear();
    return text;
}

/* The name of that one of the type and its bases which a method is defined in; NULL: in none. */
static const char *defined_in(const void *type, const struct method *method)
{
    for (; type; type = pointer_at(type, TYPE_BASE))
        for (const struct method *m = pointer_at(type, TYPE_METHODS); m && m->name; m++)
            if (m == method)
                return name_of_type(type);
    return NULL;
}

static struct name name_of_function(PyObject *function)
{
    const struct method *method = pointer_at(function, FUNCTION_METHOD);
    PyObject *self = pointer_at(function, FUNCTION_SELF);
    const char *owner = NULL, *module = text_of(pointer_at(function, FUNCTION_MODULE));
    bool of_type = self && *(unsigned long *)((char *)self->type + TYPE_FLAGS) & TYPE_SUBCLASS;
    if (of_type && !(owner = defined_in(self, method)) && !strcmp(method->name, "__new__"))
        return (struct name){self, name_of_type(self), method->name}; /* one method for all types */
    if (self && !owner)
        owner = defined_in(self->type, method);
    return (struct name){method, owner ? owner : module ? module : "", method->name};
}

static struct name name_of_descriptor(const void *descriptor, bool is_method)
{
    const struct method *method = is_method ? pointer_at(descriptor, DESCRIPTOR_METHOD) : NULL;
    const char *own = method ? method->name : text_of(pointer_at(descriptor, DESCRIPTOR_NAME));
    return (struct name){method, name_of_type(pointer_at(descriptor, DESCRIPTOR_TYPE)), own ? own : "?"};
}

/* Slots of types, NumPy's ufuncs, and what has no name of its own but is an object that can be called. */
static struct name name_of_object(PyObject *object, PyObject **holder)
{
    const char *type = name_of_type(object->type);
    if (!strcmp(type, "method-wrapper"))
        return name_of_descriptor(pointer_at(object, WRAPPER_DESCRIPTOR), false);
    *holder = strcmp(type, "numpy.ufunc") ? NULL : py.PyObject_GetAttrString(object, "__name__");
    const char *own = text_of(*holder);
    return own ? (struct name){NULL, "numpy", own} : (struct name){object->type, type, "__call__"};
}

/* `holder`: the object that has the name's text, to be released; NULL: none. */
static struct name name_of(PyObject *callable, PyObject **holder)
{
    void *type = callable->type;
    *holder = NULL;
    if (type == py.c_function_type || type == py.c_method_type)
        return name_of_function(callable);
    if (type == py.method_descriptor_type || type == py.class_method_descriptor_type)
        return name_of_descriptor(callable, true);
    if (type == py.wrapper_descriptor_type)
        return name_of_descriptor(callable, false);
    if (type == py.type_type)
        return (struct name){callable, "", name_of_type(callable)};
    return name_of_object(callable, holder);
}

static uint32_t id_of_name(const struct name *name)
{
    char text[4096];
    bool bare = !*name->owner || !strcmp(name->owner, "builtins");
    snprintf(text, sizeof text, "%s%s%s", bare ? "" : name->owner, bare ? "" : ".", name->own);
    return function_of_layer(LAYER_C, text);
}

uint32_t c_function(PyObject *callable)
{
    PyObject *holder;
    struct name name = name_of(callable, &holder);
    struct remembered *place = &remembered[((uintptr_t)name.what >> 3) * 0x9e3779b97f4a7c15ull >> 52];
    bool known = name.what && place->what == name.what && place->name == name.own && place->session == recording;
    uint32_t id = known ? place->id : id_of_name(&name);
    if (name.what && !known)
        *place = (struct remembered){name.what, name.own, recording, id};
    if (holder)
        py.Py_DecRef(holder);
    return id;
}
