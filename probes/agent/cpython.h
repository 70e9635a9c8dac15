/* The part of CPython's interface that the agent uses, declared by hand: one library serves 3.8 to 3.15,
 * with a GIL and without. */
#ifndef PYTRACE_CPYTHON_H
#define PYTRACE_CPYTHON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../cpython_offsets.h"
#include "build.h"

/* As it is in builds with a GIL; without one it is larger, and type_of() knows where its type is. */
typedef struct {
    intptr_t references;
    void *type;
} PyObject;
#define LARGEST_OBJECT 32
typedef intptr_t Py_ssize_t;
typedef PyObject *(*fast_call)(PyObject *, PyObject *const *, Py_ssize_t);
typedef int (*profile_function)(PyObject *, PyObject *, int, PyObject *);
typedef int (*audit_function)(const char *, PyObject *, void *);
typedef PyObject *(*evaluation)(void *, void *, int);
struct method {
    const char *name;
    fast_call call;
    int flags;
    const char *doc;
};
#define METH_FASTCALL 0x80
struct type_member {
    const char *name;
    int type;
    Py_ssize_t offset;
    int flags;
    const char *doc;
};
struct type_slot {
    int slot;
    void *value;
};
struct type_spec {
    const char *name;
    int size, item_size;
    unsigned flags;
    struct type_slot *slots;
};
struct allocator { /* PyMemAllocatorEx */
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
};
enum { PROFILE_CALL = 0, TRACE_LINE = 2, PROFILE_RETURN, PROFILE_C_CALL, PROFILE_C_EXCEPTION, PROFILE_C_RETURN, TRACE_OPCODE };

/* NEEDED: without it there is no tracing. The others are NULL where the version does not have them. */
#define CPYTHON_SYMBOLS(NEEDED, MAYBE) \
    NEEDED(const char *, Py_GetVersion, (void)) \
    NEEDED(int, Py_IsInitialized, (void)) \
    NEEDED(int, Py_AtExit, (void (*)(void))) \
    NEEDED(int, PySys_AddAuditHook, (audit_function, void *)) \
    NEEDED(int, PyGILState_Ensure, (void)) \
    NEEDED(void, PyGILState_Release, (int)) \
    NEEDED(void *, PyEval_SaveThread, (void)) \
    NEEDED(void, PyEval_RestoreThread, (void *)) \
    NEEDED(void *, PyInterpreterState_Main, (void)) \
    NEEDED(void *, PyInterpreterState_ThreadHead, (void *)) \
    NEEDED(void *, PyThreadState_Next, (void *)) \
    NEEDED(void *, PyThreadState_Get, (void)) \
    NEEDED(PyObject *, PyEval_GetFrame, (void)) \
    NEEDED(void, PyEval_SetProfile, (profile_function, PyObject *)) \
    NEEDED(void, PyEval_SetTrace, (profile_function, PyObject *)) \
    NEEDED(PyObject *, PySys_GetObject, (const char *)) \
    NEEDED(PyObject *, PyImport_ImportModule, (const char *)) \
    NEEDED(PyObject *, PyModule_GetDict, (PyObject *)) \
    NEEDED(PyObject *, PyDict_GetItemString, (PyObject *, const char *)) \
    NEEDED(int, PyDict_Next, (PyObject *, Py_ssize_t *, PyObject **, PyObject **)) \
    NEEDED(PyObject *, PyObject_GetAttrString, (PyObject *, const char *)) \
    NEEDED(int, PyObject_SetAttrString, (PyObject *, const char *, PyObject *)) \
    NEEDED(PyObject *, PyObject_CallMethod, (PyObject *, const char *, const char *, ...)) \
    NEEDED(PyObject *, PyCFunction_NewEx, (struct method *, PyObject *, PyObject *)) \
    NEEDED(PyObject *, PyType_FromSpec, (struct type_spec *)) \
    NEEDED(PyObject *, PyType_GenericAlloc, (PyObject *, Py_ssize_t)) \
    NEEDED(const char *, PyUnicode_AsUTF8AndSize, (PyObject *, Py_ssize_t *)) \
    NEEDED(PyObject *, PyUnicode_AsEncodedString, (PyObject *, const char *, const char *)) \
    NEEDED(char *, PyBytes_AsString, (PyObject *)) \
    NEEDED(Py_ssize_t, PyBytes_Size, (PyObject *)) \
    NEEDED(Py_ssize_t, PyTuple_Size, (PyObject *)) \
    NEEDED(PyObject *, PyTuple_GetItem, (PyObject *, Py_ssize_t)) \
    NEEDED(Py_ssize_t, PyList_Size, (PyObject *)) \
    NEEDED(PyObject *, PyList_GetItem, (PyObject *, Py_ssize_t)) \
    NEEDED(int, PyList_Append, (PyObject *, PyObject *)) \
    NEEDED(int, PySequence_DelItem, (PyObject *, Py_ssize_t)) \
    NEEDED(PyObject *, PyLong_FromLong, (long)) \
    NEEDED(long, PyLong_AsLong, (PyObject *)) \
    NEEDED(void, PyErr_Clear, (void)) \
    NEEDED(void, PyErr_Fetch, (PyObject **, PyObject **, PyObject **)) \
    NEEDED(void, PyErr_Restore, (PyObject *, PyObject *, PyObject *)) \
    NEEDED(PyObject *, PyCode_NewEmpty, (const char *, const char *, int)) \
    NEEDED(int, PyCode_Addr2Line, (PyObject *, int)) \
    NEEDED(int, PyFrame_GetLineNumber, (PyObject *)) \
    NEEDED(void, Py_IncRef, (PyObject *)) \
    NEEDED(void, Py_DecRef, (PyObject *)) \
    NEEDED(int, Py_AddPendingCall, (int (*)(void *), void *)) \
    MAYBE(int, _PyEval_AddPendingCall, (void *, int (*)(void *), void *, int)) \
    MAYBE(void, PyMem_GetAllocator, (int, struct allocator *)) \
    MAYBE(void, PyMem_SetAllocator, (int, struct allocator *)) \
    MAYBE(uint64_t, PyThreadState_GetID, (void *)) \
    MAYBE(PyObject *, PyThreadState_GetFrame, (void *)) \
    MAYBE(void, PyThreadState_EnterTracing, (void *)) \
    MAYBE(void, PyThreadState_LeaveTracing, (void *)) \
    MAYBE(void *, _PyThreadState_UncheckedGet, (void)) \
    MAYBE(void *, PyThreadState_GetUnchecked, (void)) \
    MAYBE(void *, PyCapsule_GetPointer, (PyObject *, const char *)) \
    MAYBE(void *, PyInterpreterState_Get, (void)) \
    MAYBE(int64_t, PyInterpreterState_GetID, (void *)) \
    MAYBE(void *, PyInterpreterState_Head, (void)) \
    MAYBE(void *, PyInterpreterState_Next, (void *)) \
    MAYBE(void, _PyInterpreterState_SetEvalFrameFunc, (void *, evaluation)) \
    MAYBE(evaluation, _PyInterpreterState_GetEvalFrameFunc, (void *)) \
    MAYBE(PyObject *, _PyEval_EvalFrameDefault, (void *, void *, int)) \
    MAYBE(int, PyThread_acquire_lock, (void *, int)) \
    MAYBE(void, PyThread_release_lock, (void *)) \
    MAYBE(void, PyMutex_Lock, (void *)) \
    MAYBE(void, PyMutex_Unlock, (void *)) \
    MAYBE(int, _Py_IsFinalizing, (void)) \
    MAYBE(int, Py_IsFinalizing, (void))

#define DECLARE_FUNCTION(type, name, arguments) type(*name) arguments;
struct cpython {
    CPYTHON_SYMBOLS(DECLARE_FUNCTION, DECLARE_FUNCTION)
    void *runtime;  /* _PyRuntime; NULL = not found */
    PyObject *none; /* _Py_NoneStruct */
    void *code_type, *vectorcall_call; /* PyCode_Type, PyVectorcall_Call */
    void *type_type, *string_type, *function_type, *method_type, *c_function_type, *c_method_type, *method_descriptor_type,
        *class_method_descriptor_type, *wrapper_descriptor_type; /* NULL where the version has no such type */
    void *generator_types[3]; /* of generators, coroutines, asynchronous generators */
    void **generator_exit; /* PyExc_GeneratorExit */
    PyObject *true_, *false_;
    void *long_type, *float_type, *set_type, *frozenset_type, *bytearray_type, *cell_type, *traceback_type; /* NULL = not found, as no object's type is */
    uint32_t version; /* PY_VERSION_HEX */
    bool free_threaded; /* built without a GIL; it may have one nevertheless (-X gil=1) */
};
extern struct cpython py;

/* Of the version at hand; -1 = it has no such field. */
#define DECLARE_OFFSET(name, ...) int name;
struct offsets {
    CPYTHON_OFFSETS(DECLARE_OFFSET)
};
extern const struct offsets *at;

static inline void *pointer_at(const void *base, int offset)
{
    return *(void **)((char *)base + offset);
}

/* The frame that called this one. */
static inline void *frame_behind(const void *frame)
{
    return pointer_at(frame, at->frame_previous);
}

static inline void *type_of(const PyObject *object)
{
    return pointer_at(object, at->object_type);
}

/* From 3.11 on, whether a position (bytes) in the code is behind where the function's own code begins
 * (_co_firsttraceable, in words): a frame that is entered there had yielded. */
static inline bool is_behind_start(const void *code, int64_t position)
{
    return position > 2 * (int64_t) * (const int32_t *)((const char *)code + at->code_traceable);
}

/* NULL = not a Python frame. */
PyObject *code_of_frame(const void *frame);

/* From 3.11 on, where a frame stands, as if it ran the code object's own code and no copy of it. */
static inline uintptr_t instruction_of_frame(const void *frame)
{
    uintptr_t instruction = (uintptr_t)pointer_at(frame, at->frame_position);
    const PyObject *code = LIKELY(at->code_copies < 0) ? NULL : code_of_frame(frame);
    if (!code)
        return instruction;
    const uintptr_t *copies = pointer_at(code, at->code_copies); /* behind their number */
    return instruction - copies[1 + *(const int32_t *)((const char *)frame + at->frame_copy)] + (uintptr_t)code + at->code_start;
}

/* Resolves everything; false where this is no Python that the agent knows. May be called at any time. */
bool cpython_find(void);
/* NULL, or the sentence that says why this build cannot be traced, or not with these options. GIL held. */
const char *cpython_unfit(void);
bool cpython_finalizing(void);
/* How many interpreters there have been so far, the main one included; 0 = not known. */
uint64_t interpreters_made(void);
/* GIL held. Whether this thread runs the main interpreter, not a further one. */
bool cpython_is_main(void);
/* Whether this process has a thread of that id. */
bool cpython_is_thread(uint32_t id);
/* GIL held. A thread's id as the kernel in the process's own namespace numbers it. */
uint32_t thread_id_of(void *thread_state);
uint64_t thread_number_of(void *thread_state);
/* The long attribute of an object, 0 where it has none. Leaves no exception. */
long long_attribute(PyObject *object, const char *name);
/* A module that was imported already, borrowed; NULL = it was not. */
PyObject *imported_module(const char *name);
/* GIL held. Whether code of this file is the main program's: a script's, or what was typed or given with -c. Leaves no exception. */
bool is_of_main(const char *file);
/* A module of the interpreter's own, and sys.modules as it was: a program that has no use for it shall not have it. NULL = there is none; leaves no exception. */
PyObject *import_unseen(const char *name);
/* Object of a C function; NULL with an exception set. */
PyObject *new_function(struct method *method);

#endif
