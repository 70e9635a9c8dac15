/* Reports garbage collections, and imports around what importlib does for them. */
#include "layers.h"

#include "calls.h"
#include "cpython.h"
#include "greenlets.h"
#include "threads.h"
#include "whose.h"
#include "world.h"

#define COLLECTION 1 /* its number among frames: a thread has but one at a time */

static PyObject *callbacks, *callback; /* gc.callbacks, and what is in it while a session lasts */

static PyObject *list_of_callbacks(void)
{
    PyObject *gc = import_unseen("gc");
    PyObject *list = gc ? py.PyObject_GetAttrString(gc, "callbacks") : NULL;
    if (gc)
        py.Py_DecRef(gc);
    py.PyErr_Clear();
    return list;
}

static long generation_of(PyObject *information)
{
    PyObject *number = py.PyDict_GetItemString(information, "generation");
    return number ? py.PyLong_AsLong(number) : -1;
}

/* Called by the collector with "start" or "stop" and a dictionary; anybody who finds it in the list may call it with anything. */
static PyObject *on_collection(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    static const char *const generations[] = {"0", "1", "2"};
    (void)self;
    PyObject *type, *value, *traceback;
    within_agent(true);
    py.PyErr_Fetch(&type, &value, &traceback);
    struct writer *w = writer_within_frame();
    const char *phase = w && count == 2 ? py.PyUnicode_AsUTF8AndSize(arguments[0], NULL) : NULL;
    if (phase && !__builtin_strcmp(phase, "start")) {
        long generation = w->collecting ? -1 : generation_of(arguments[1]);
        if (generation >= 0 && generation <= 2) {
            w->collecting = function_of_layer(LAYER_GC, generations[generation]);
            if (w->collecting)
                write_event(w, w->collecting, COLLECTION, 0, CALL_ENTRY);
        }
    } else if (phase && w->collecting) {
        write_event(w, w->collecting, COLLECTION, 0, CALL_RETURN);
        w->collecting = 0;
    }
    py.PyErr_Clear();
    py.PyErr_Restore(type, value, traceback);
    within_agent(false);
    py.Py_IncRef(py.none);
    return py.none;
}

static struct method on_collection_method = {"pytrace_collection", on_collection, 0, NULL};

void collections_stop(void)
{
    /* Not by list.remove(), which asks what else is in the list whether it is equal. */
    for (Py_ssize_t i = callback ? py.PyList_Size(callbacks) : 0; i-- > 0;)
        if (py.PyList_GetItem(callbacks, i) == callback)
            py.PySequence_DelItem(callbacks, i);
    if (callback)
        py.Py_DecRef(callback);
    if (callbacks)
        py.Py_DecRef(callbacks);
    callbacks = callback = NULL;
    py.PyErr_Clear();
}

void collections_start(void)
{
    callbacks = list_of_callbacks();
    callback = callbacks ? new_function(&on_collection_method) : NULL;
    if (!callback || py.PyList_Append(callbacks, callback))
        collections_stop();
    py.PyErr_Clear();
}

/* The id of the import that importlib's running function stands for, by that one's local variable `name`. */
static uint32_t import_here(void)
{
    PyObject *type, *value, *traceback;
    py.PyErr_Fetch(&type, &value, &traceback);
    PyObject *frame = py.PyEval_GetFrame();
    PyObject *locals = frame ? py.PyObject_GetAttrString(frame, "f_locals") : NULL;
    PyObject *name = locals ? py.PyObject_CallMethod(locals, "get", "s", "name") : NULL;
    const char *text = name ? py.PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    uint32_t id = function_of_layer(LAYER_IMPORT, text ? text : "?");
    if (name)
        py.Py_DecRef(name);
    if (locals)
        py.Py_DecRef(locals);
    py.PyErr_Clear();
    py.PyErr_Restore(type, value, traceback);
    return id;
}

static void import_begins(struct writer *w, const void *frame)
{
    uint32_t function = import_here(), line = line_called_from(frame);
    if (UNLIKELY(stacks_switch) && frame && !owner_here)
        stacks_enter(w, (void *)frame, number_of_import(frame), function, line);
    write_event(w, function, number_of_import(frame), line, CALL_ENTRY);
    w->imports++;
}

static void import_ends(struct writer *w, const void *frame, uint64_t kind)
{
    greenlets_look();
    if (!w->imports) /* it was open when the session began */
        return;
    w->imports--;
    if (UNLIKELY(stacks_switch) && frame && !owner_here)
        stacks_leave(w, (void *)frame, number_of_import(frame));
    write_event(w, import_here(), number_of_import(frame), 0, kind);
}

void import_event(struct writer *w, struct function_entry *function, const void *frame, uint32_t line, uint64_t kind)
{
    bool wanted = !(function->flags & UNWANTED);
    within_agent(true);
    if (kind == CALL_ENTRY) {
        import_begins(w, frame);
        if (wanted)
            enter(w, function, frame, kind);
    } else {
        if (wanted)
            leave(w, function, frame, line, kind, NULL);
        import_ends(w, frame, kind);
    }
    within_agent(false);
}

void collection_cut(struct writer *w)
{
    if (w->collecting)
        write_event(w, w->collecting, COLLECTION, 0, CALL_RETURN);
    w->collecting = 0;
}

void import_cut(struct writer *w, const void *frame)
{
    if (!w->imports)
        return;
    w->imports--;
    write_event(w, 0, number_of_import(frame), 0, CALL_RETURN);
}
