/* Stands before the functions of sys.monitoring by which programs take ids, find out who has one, and free one.
 *
 * A function of C's is called by the pointer in its PyMethodDef, also where a program has kept the function itself: so it is put there. */
#include "tools.h"

#include <string.h>

#include "cpython.h"

#define METH_O 8

int (*tools_ours)(void);
void (*tools_give_way)(void);

typedef PyObject *(*with_one)(PyObject *, PyObject *);
static PyObject *on_use(PyObject *, PyObject *const *, Py_ssize_t), *on_get(PyObject *, PyObject *), *on_free(PyObject *, PyObject *),
    *on_clear(PyObject *, PyObject *), *on_events(PyObject *, PyObject *);
enum { USE, GET, FREE, CLEAR, EVENTS, FUNCTIONS };
static struct {
    const char *name;
    int flags;
    void *ours, *theirs; /* theirs: NULL = it was never looked at */
    struct method *method;
} functions[FUNCTIONS] = {
    {"use_tool_id", METH_FASTCALL, on_use, NULL, NULL},
    {"get_tool", METH_O, on_get, NULL, NULL},
    {"free_tool_id", METH_O, on_free, NULL, NULL},
    {"clear_tool_id", METH_O, on_clear, NULL, NULL}, /* 3.14 */
    {"get_events", METH_O, on_events, NULL, NULL},
};

static bool is_ours(PyObject *id)
{
    if (type_of(id) != type_of(py.true_) && type_of(id) != py.long_type)
        return false;
    long number = py.PyLong_AsLong(id);
    return number >= 0 && number == tools_ours();
}

static PyObject *on_use(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count == 2 && is_ours(arguments[0]))
        tools_give_way();
    return ((fast_call)functions[USE].theirs)(self, arguments, count);
}

/* What these do about an id that nobody has is nothing. */
static PyObject *unless_ours(int i, PyObject *self, PyObject *id)
{
    if (!is_ours(id))
        return ((with_one)functions[i].theirs)(self, id);
    py.Py_IncRef(py.none);
    return py.none;
}

static PyObject *on_get(PyObject *self, PyObject *id)
{
    return unless_ours(GET, self, id);
}

static PyObject *on_free(PyObject *self, PyObject *id)
{
    return unless_ours(FREE, self, id);
}

static PyObject *on_clear(PyObject *self, PyObject *id)
{
    return unless_ours(CLEAR, self, id);
}

static PyObject *on_events(PyObject *self, PyObject *id)
{
    return is_ours(id) ? py.PyLong_FromLong(0) : ((with_one)functions[EVENTS].theirs)(self, id);
}

static struct method *method_of(PyObject *module, const char *name, int flags)
{
    PyObject *function = py.PyObject_GetAttrString(module, name);
    struct method *method = NULL;
    if (function && type_of(function) == py.c_function_type)
        method = pointer_at(function, at->object_type + sizeof(void *));
    if (function)
        py.Py_DecRef(function);
    py.PyErr_Clear();
    return method && method->flags == flags && !strcmp(method->name, name) ? method : NULL;
}

static void put(int i, void *call)
{
    __atomic_store_n((void **)&functions[i].method->call, call, __ATOMIC_RELEASE);
}

void tools_begin(void)
{
    PyObject *module = py.PySys_GetObject("monitoring");
    for (int i = 0; module && i < FUNCTIONS; i++) {
        struct method *method = functions[i].method;
        if (!method)
            method = method_of(module, functions[i].name, functions[i].flags);
        if (!method || (void *)method->call == functions[i].ours)
            continue;
        functions[i].method = method;
        functions[i].theirs = (void *)method->call;
        put(i, functions[i].ours);
    }
}

void tools_end(void)
{
    for (int i = 0; i < FUNCTIONS; i++)
        if (functions[i].method && (void *)functions[i].method->call == functions[i].ours)
            put(i, functions[i].theirs); /* which stays known for a thread that is on its way into ours */
}
