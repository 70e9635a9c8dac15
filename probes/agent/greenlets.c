/* Greenlets: finds out that a program has them, and when it switches (greenlet itself, and so gevent and eventlet).
 *
 * stacks.c learns of a switch from the next event, which may be late. So while a session lasts, greenlet's functions for it, in its
 * type's methods and in the table that it exports to others (gevent), are ours, which call them and say when. Where it has these in memory
 * that is not to be written to they stay its own. */
#define _GNU_SOURCE
#include "greenlets.h"

#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "arena.h"
#include "c_names.h"
#include "frames.h"
#include "stacks.h"
#include "whose.h"

enum { GREENLET_TYPE = 0, GREENLET_THROW = 5, GREENLET_SWITCH = 6 }; /* places in the table that it exports */

static PyObject *(*switch_exported)(PyObject *, PyObject *, PyObject *), *(*switch_method)(PyObject *, PyObject *, PyObject *);
static PyObject *(*throw_exported)(PyObject *, PyObject *, PyObject *, PyObject *), *(*throw_method)(PyObject *, PyObject *);

static struct writer *writer_switching(void)
{
    struct writer *w = this_writer;
    return stacks_switch && frames_known && writes_to(w, recording) ? w : NULL;
}

static void leave_stack(void)
{
    struct writer *w = writer_switching();
    if (!w)
        return;
    void *frame = innermost_frame(py._PyThreadState_UncheckedGet());
    stacks_come_to(w, frame);
    stacks_suspend(w, frame);
}

static PyObject *come_back(PyObject *result)
{
    struct writer *w = writer_switching();
    if (w)
        stacks_come_to(w, innermost_frame(py._PyThreadState_UncheckedGet()));
    return result;
}

static PyObject *on_switch_exported(PyObject *greenlet, PyObject *arguments, PyObject *keywords)
{
    leave_stack();
    return come_back(switch_exported(greenlet, arguments, keywords));
}

static PyObject *on_switch_method(PyObject *greenlet, PyObject *arguments, PyObject *keywords)
{
    leave_stack();
    return come_back(switch_method(greenlet, arguments, keywords));
}

static PyObject *on_throw_exported(PyObject *greenlet, PyObject *type, PyObject *value, PyObject *traceback)
{
    leave_stack();
    return come_back(throw_exported(greenlet, type, value, traceback));
}

static PyObject *on_throw_method(PyObject *greenlet, PyObject *arguments)
{
    leave_stack();
    return come_back(throw_method(greenlet, arguments));
}

static struct {
    void *ours, **theirs; /* theirs: where we keep it */
    void **place;         /* where greenlet does; NULL = it is not taken */
} functions[] = {
    {on_switch_exported, (void **)&switch_exported, NULL},
    {on_switch_method, (void **)&switch_method, NULL},
    {on_throw_exported, (void **)&throw_exported, NULL},
    {on_throw_method, (void **)&throw_method, NULL},
};

/* By the kernel, which refuses where it may not be written to. */
static bool replace(void **place, void *value)
{
    struct iovec from = {&value, sizeof value}, to = {place, sizeof value};
    return syscall(SYS_process_vm_writev, getpid(), &from, 1ul, &to, 1ul, 0ul) == sizeof value;
}

static void take_function(size_t i, void **place)
{
    if (!place || functions[i].place)
        return;
    if (*place != functions[i].ours)
        *functions[i].theirs = *place;
    if (*place == functions[i].ours || replace(place, functions[i].ours))
        functions[i].place = place;
}

static void **method_of(const void *type, const char *name)
{
    for (struct method *method = pointer_at(type, TYPE_METHODS); method && method->name; method++)
        if (!strcmp(method->name, name))
            return (void **)&method->call;
    return NULL;
}

/* False: it has none yet. */
static bool take_functions(PyObject *module)
{
    PyObject *capsule = py.PyObject_GetAttrString(module, "_C_API");
    void **table = capsule && py.PyCapsule_GetPointer ? py.PyCapsule_GetPointer(capsule, "greenlet._C_API") : NULL;
    if (table) {
        take_function(0, &table[GREENLET_SWITCH]);
        take_function(1, method_of(table[GREENLET_TYPE], "switch"));
        take_function(2, &table[GREENLET_THROW]);
        take_function(3, method_of(table[GREENLET_TYPE], "throw"));
    }
    if (capsule)
        py.Py_DecRef(capsule);
    py.PyErr_Clear();
    return table != NULL;
}

static bool taken;

void greenlets_look(void)
{
    if (LIKELY(taken || !frames_known) || py.free_threaded || owner_here) /* stacks.c relies on the GIL, and is for the main interpreter */
        return;
    PyObject *type, *value, *traceback;
    py.PyErr_Fetch(&type, &value, &traceback);
    PyObject *module = imported_module("greenlet._greenlet");
    if (!stacks_switch && (module || imported_module("greenlet"))) {
        stacks_switch = true;
        void *state = py.PyInterpreterState_ThreadHead(py.PyInterpreterState_Main());
        for (; state; state = py.PyThreadState_Next(state)) {
            void *frame = innermost_frame(state);
            struct writer *w = frame ? writer_of(thread_id_of(state)) : NULL;
            if (w)
                stacks_note(w, frame);
        }
    }
    taken = module && take_functions(module);
    py.PyErr_Restore(type, value, traceback);
}

void greenlets_begin(void)
{
    stacks_begin();
    taken = false;
    greenlets_look();
}

void greenlets_stop(void)
{
    stacks_begin();
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (functions[i].place && *functions[i].place == functions[i].ours)
            replace(functions[i].place, *functions[i].theirs);
        functions[i].place = NULL;
    }
}
