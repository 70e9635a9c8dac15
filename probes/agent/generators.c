/* Keeps the garbage collector from the stacks of generators that run.
 *
 * The first releases of 3.11 (3.11.2 for one, 3.11.7 no longer) store a frame's depth of stack for the profile function that is told of an entry, and do
 * not take it back afterwards. The collector then believes that depth for as long as the frame runs, and reads what was there: objects that
 * may be freed by now. Of all frames it reads only those of generators, coroutines and asynchronous generators.
 *
 * While one of them runs it is passed over here. What it refers to then counts as referred to from outside, which it is, by the stack of a thread. A
 * generator that runs when a recording ends has the wrong depth until it yields, and a greenlet's may do so at any time: this stays. */
#include <string.h>

#include "cpython.h"
#include "generators.h"
#include "objects.h"

typedef int (*visitor)(PyObject *, void *);
typedef int (*traversal)(PyObject *, visitor, void *);
struct attribute { /* PyGetSetDef */
    const char *name;
    PyObject *(*get)(PyObject *, void *);
    void *set;
    const char *doc;
    void *closure;
};
/* In PyTypeObject. */
#define TYPE_TRAVERSE (TYPE_FLAGS + 16)
#define TYPE_ATTRIBUTES (TYPE_FLAGS + 80)
#define KINDS 3

static traversal collectors_own[KINDS];
static PyObject *(*get_running)(PyObject *, void *);

static traversal *traversal_of(void *type)
{
    return (traversal *)((char *)type + TYPE_TRAVERSE);
}

static int traverse(PyObject *generator, visitor visit, void *argument)
{
    PyObject *running = get_running(generator, NULL); /* true or false: these are never freed, and the collector does not count them */
    py.Py_DecRef(running);
    if (running == py.true_)
        return 0;
    int kind = 0;
    while (kind < KINDS - 1 && type_of(generator) != py.generator_types[kind])
        kind++;
    return collectors_own[kind](generator, visit, argument);
}

void generators_protect(void)
{
    if (py.version >> 16 != 0x030b || get_running || !py.generator_types[0] || !py.generator_types[1] || !py.generator_types[2])
        return;
    const struct attribute *attribute = pointer_at(py.generator_types[0], TYPE_ATTRIBUTES);
    while (attribute && attribute->name && strcmp(attribute->name, "gi_running"))
        attribute++;
    if (!attribute || !attribute->name)
        return;
    get_running = attribute->get;
    for (int kind = 0; kind < KINDS; kind++) {
        traversal *here = traversal_of(py.generator_types[kind]);
        collectors_own[kind] = *here;
        *here = traverse;
    }
}
