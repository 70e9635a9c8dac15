/* Stops the threads of a Python without a GIL, as its garbage collector does: gc.get_referents() asks an object of ours what it refers to
 * while the world stands still. Nothing that CPython exports in each version does it more directly. */
#include "world.h"

#include <time.h>

#include "build.h"
#include "cpython.h"

#define PAUSE_NS 100000

static void (*pending)(void);
static void *stopper; /* thread state of who has the world stopped for `pending` */
static uint32_t within;
static bool somebody_within, claimed;

/* A collection asks it too, on whatever thread, and is not meant. */
static int on_traverse(PyObject *self, void *visit, void *argument)
{
    (void)self, (void)visit, (void)argument;
    if (stopper != py._PyThreadState_UncheckedGet() || !pending)
        return 0;
    pending();
    pending = NULL;
    return 0;
}

static struct type_slot slots[] = {{71 /* Py_tp_traverse */, on_traverse}, {0}};
static struct type_spec object_type = {
    .name = "pytrace.stopped",
    .size = LARGEST_OBJECT,
    .flags = 1 << 7 /* the program makes none */ | 1 << 14 /* garbage collected */ | 1 << 18 /* as every type */,
    .slots = slots,
};

bool world_stopped(void (*act)(void))
{
    if (!py.free_threaded) {
        act();
        return true;
    }
    PyObject *gc = import_unseen("gc"), *type = py.PyType_FromSpec(&object_type);
    PyObject *object = gc && type ? py.PyType_GenericAlloc(type, 0) : NULL, *result = NULL;
    stopper = py._PyThreadState_UncheckedGet();
    pending = act;
    if (object)
        result = py.PyObject_CallMethod(gc, "get_referents", "O", object);
    bool done = object && !pending;
    pending = NULL;
    stopper = NULL;
    PyObject *const owned[] = {result, object, type, gc};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        if (owned[i])
            py.Py_DecRef(owned[i]);
    py.PyErr_Clear();
    return done;
}

void world_claim(void)
{
    struct timespec pause = {0, PAUSE_NS};
    while (py.free_threaded && __atomic_exchange_n(&claimed, true, __ATOMIC_ACQUIRE)) {
        void *state = py.PyEval_SaveThread(); /* who has claimed it may be about to stop the world */
        nanosleep(&pause, NULL);
        py.PyEval_RestoreThread(state);
    }
}

void world_release(void)
{
    __atomic_store_n(&claimed, false, __ATOMIC_RELEASE);
}

static void look(void)
{
    somebody_within = __atomic_load_n(&within, __ATOMIC_RELAXED) != 0;
}

void world_leaves_agent(void)
{
    struct timespec pause = {0, PAUSE_NS};
    while (py.free_threaded && (!world_stopped(look) || somebody_within))
        nanosleep(&pause, NULL);
}

void within_agent(bool enters)
{
    if (UNLIKELY(py.free_threaded))
        __atomic_fetch_add(&within, enters ? 1 : -1, __ATOMIC_SEQ_CST);
}

void world_after_fork(void)
{
    within = 0;
    claimed = false;
}
