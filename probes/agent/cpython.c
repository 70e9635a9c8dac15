/* Finds CPython's functions in this process, and the offsets of its version. */
#define _GNU_SOURCE
#include "cpython.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "build.h"
#include "options.h"

struct cpython py;
const struct offsets *at;

#define TEXT(number) TEXT_OF_IT(number)
#define TEXT_OF_IT(word) #word
#define FIRST_THREAD 2 /* by thread_number_of() */

enum { NONE = -1 };
#define COUNT(...) (sizeof((int[]){__VA_ARGS__}) / sizeof(int))
#define HAS_ALL(name, ...) _Static_assert(COUNT(__VA_ARGS__) == CPYTHON_VERSIONS, #name);
CPYTHON_OFFSETS(HAS_ALL)
#define ROW(name, ...) {__VA_ARGS__},
static const int table[][CPYTHON_VERSIONS] = {CPYTHON_OFFSETS(ROW)};
static struct offsets offsets;
#define FREE_THREADED_VERSIONS (CPYTHON_FREE_THREADED_LAST - CPYTHON_FREE_THREADED_FIRST + 1)

/* Puts a version's column of the table into `offsets`; NULL where there is none. */
static const struct offsets *offsets_of(uint32_t minor, bool free_threaded)
{
    if (minor < CPYTHON_FIRST || minor > CPYTHON_LAST)
        return NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        ((int *)&offsets)[i] = table[i][minor - CPYTHON_FIRST];
    if (!free_threaded)
        return &offsets;
    if (minor < CPYTHON_FREE_THREADED_FIRST || minor > CPYTHON_FREE_THREADED_LAST)
        return NULL;
#define ELSEWHERE(name, ...) offsets.name = (const int[FREE_THREADED_VERSIONS]){__VA_ARGS__}[minor - CPYTHON_FREE_THREADED_FIRST];
    CPYTHON_FREE_THREADED_OFFSETS(ELSEWHERE)
    return &offsets;
}

/* PY_VERSION_HEX from a text like "3.15.0a2+ (heads/main, ...". */
static uint32_t version_of(const char *text)
{
    char *end;
    uint32_t version = strtoul(text, &end, 10) << 24;
    version |= strtoul(end + 1, &end, 10) << 16;
    version |= strtoul(end + 1, &end, 10) << 8;
    uint32_t level = *end == 'a' ? 0xa0 : *end == 'b' ? 0xb0 : *end == 'r' ? 0xc0 : 0xf0;
    if (level != 0xf0)
        level |= strtoul(end + (*end == 'r' ? 2 : 1), NULL, 10) & 15;
    return version | level;
}

static int note_libpython(struct dl_phdr_info *library, size_t size, void *path)
{
    (void)size;
    const char *name = strrchr(library->dlpi_name, '/');
    if (!name || strncmp(name, "/libpython3.", 12) || name[12] < '0' || name[12] > '9')
        return 0;
    snprintf(path, PATH_MAX, "%s", library->dlpi_name);
    return 1;
}

static bool find_in(void *python)
{
#define FIND(type, name, arguments) py.name = dlsym(python, #name);
#define FIND_OR_FAIL(type, name, arguments) \
    if (!(py.name = dlsym(python, #name))) \
        return false;
    CPYTHON_SYMBOLS(FIND_OR_FAIL, FIND)
    py.runtime = dlsym(python, "_PyRuntime");
    py.none = dlsym(python, "_Py_NoneStruct");
    py.code_type = dlsym(python, "PyCode_Type");
    py.vectorcall_call = dlsym(python, "PyVectorcall_Call");
    py.generator_exit = dlsym(python, "PyExc_GeneratorExit");
    static const struct {
        void **type;
        const char *name;
    } types[] = {
        {&py.type_type, "PyType_Type"}, {&py.string_type, "PyUnicode_Type"}, {&py.function_type, "PyFunction_Type"},
        {&py.method_type, "PyMethod_Type"}, {&py.c_function_type, "PyCFunction_Type"}, {&py.c_method_type, "PyCMethod_Type"},
        {&py.method_descriptor_type, "PyMethodDescr_Type"}, {&py.class_method_descriptor_type, "PyClassMethodDescr_Type"},
        {&py.wrapper_descriptor_type, "PyWrapperDescr_Type"}, {&py.generator_types[0], "PyGen_Type"},
        {&py.generator_types[1], "PyCoro_Type"}, {&py.generator_types[2], "PyAsyncGen_Type"},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        *types[i].type = dlsym(python, types[i].name);
    py.true_ = dlsym(python, "_Py_TrueStruct");
    py.false_ = dlsym(python, "_Py_FalseStruct");
    py.long_type = dlsym(python, "PyLong_Type");
    py.float_type = dlsym(python, "PyFloat_Type");
    py.set_type = dlsym(python, "PySet_Type");
    py.frozenset_type = dlsym(python, "PyFrozenSet_Type");
    py.bytearray_type = dlsym(python, "PyByteArray_Type");
    py.cell_type = dlsym(python, "PyCell_Type");
    py.traceback_type = dlsym(python, "PyTraceBack_Type");
    if (!py.none || !py.code_type || !py.vectorcall_call || !py.generator_exit)
        return false;
    if (!py._PyThreadState_UncheckedGet)
        py._PyThreadState_UncheckedGet = py.PyThreadState_GetUnchecked ? py.PyThreadState_GetUnchecked : py.PyThreadState_Get;
    if (!py._Py_IsFinalizing)
        py._Py_IsFinalizing = py.Py_IsFinalizing;
    uint32_t version = version_of(py.Py_GetVersion()), minor = version >> 16 & 255;
    if (version >> 24 != 3 || minor < CPYTHON_FIRST)
        return false;
    py.free_threaded = strstr(py.Py_GetVersion(), "free-threading") != NULL;
    at = offsets_of(minor, py.free_threaded);
    py.version = version;
    return true;
}

bool cpython_find(void)
{
    if (py.version)
        return true;
    if (!dlsym)
        return false;
    void *python = RTLD_DEFAULT;
    char path[PATH_MAX];
    bool is_there = dlsym(RTLD_DEFAULT, "Py_GetVersion");
    if (!is_there && dlopen && dl_iterate_phdr(note_libpython, path)) /* loaded for the program alone, or only just now */
        is_there = (python = dlopen(path, RTLD_LAZY | RTLD_NOLOAD)) != NULL;
    bool found = is_there && find_in(python);
    if (dlerror)
        dlerror(); /* what is missing is no error of the program's */
    return found;
}

/* What reads objects that another thread may be changing, or counts in one place for all threads. */
static const char *needs_gil(void)
{
#define NEEDS_GIL(option) "Without a GIL " option " is not made yet: leave it out, or run the program with a build that has a GIL."
    if (options.args)
        return NEEDS_GIL("--args");
    if (options.c_calls)
        return NEEDS_GIL("--c-calls");
    if (options.opcodes)
        return NEEDS_GIL("--opcodes exact");
    return options.memory ? NEEDS_GIL("--memory") : NULL;
}

const char *cpython_unfit(void)
{
    if (!at && py.free_threaded)
        return "Of CPython without a GIL the agent knows 3." TEXT(CPYTHON_FREE_THREADED_FIRST) " to 3." TEXT(CPYTHON_FREE_THREADED_LAST)
               ": run the program with one of these, or with a build that has a GIL.";
    if (!at)
        return "The agent knows CPython 3." TEXT(CPYTHON_FIRST) " to 3." TEXT(CPYTHON_LAST) "; this is a later version.";
    if (py.free_threaded && needs_gil())
        return needs_gil();
    if (py.PySys_GetObject("getobjects"))
        return "This CPython was built with Py_TRACE_REFS, which moves its structures: run the program with an ordinary build.";
    if (thread_id_of(py._PyThreadState_UncheckedGet()) != (uint32_t)syscall(SYS_gettid))
        return "This CPython does not keep its threads' ids where its version has them: run the program with an ordinary build.";
    return NULL;
}

bool cpython_finalizing(void)
{
    return !py.Py_IsInitialized() || (py._Py_IsFinalizing && py._Py_IsFinalizing());
}

uint64_t interpreters_made(void)
{
    return py.runtime ? *(uint64_t *)((char *)py.runtime + at->runtime_main_interpreter + 8) : 0; /* next_id follows `main` in 3.8 to 3.15 */
}

bool cpython_is_main(void)
{
    if (py.PyInterpreterState_Get)
        return py.PyInterpreterState_Get() == py.PyInterpreterState_Main();
    void *state = py.PyInterpreterState_ThreadHead(py.PyInterpreterState_Main());
    while (state && state != py._PyThreadState_UncheckedGet())
        state = py.PyThreadState_Next(state);
    return state != NULL;
}

bool cpython_is_thread(uint32_t id)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/self/task/%u", id);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

uint32_t thread_id_of(void *thread_state)
{
    if (at->thread_native_id >= 0) {
        uint32_t id = *(uint64_t *)((char *)thread_state + at->thread_native_id);
        /* Where C code forks and does not tell Python, as uWSGI, the child's first thread has its creator's id there. */
        return thread_number_of(thread_state) == FIRST_THREAD && !cpython_is_thread(id) ? (uint32_t)getpid() : id;
    }
    char *thread = pointer_at(thread_state, at->thread_pthread);
    return thread ? *(uint32_t *)(thread + PTHREAD_TID) : 0;
}

uint64_t thread_number_of(void *thread_state)
{
    return py.PyThreadState_GetID ? py.PyThreadState_GetID(thread_state) + 1 : (uintptr_t)thread_state;
}

long long_attribute(PyObject *object, const char *name)
{
    PyObject *value = py.PyObject_GetAttrString(object, name);
    long number = value ? py.PyLong_AsLong(value) : 0;
    if (value)
        py.Py_DecRef(value);
    py.PyErr_Clear();
    return number;
}

PyObject *imported_module(const char *name)
{
    PyObject *modules = py.PySys_GetObject("modules");
    PyObject *module = modules ? py.PyDict_GetItemString(modules, name) : NULL;
    return module == py.none ? NULL : module;
}

bool is_of_main(const char *file)
{
    PyObject *module = imported_module("__main__");
    PyObject *names = module ? py.PyModule_GetDict(module) : NULL; /* its attributes may be code of the program's */
    PyObject *own = names ? py.PyDict_GetItemString(names, "__file__") : NULL;
    Py_ssize_t length;
    const char *path = own && type_of(own) == py.string_type ? py.PyUnicode_AsUTF8AndSize(own, &length) : NULL;
    py.PyErr_Clear();
    if (path)
        return !strcmp(path, file);
    return !strcmp(file, "<string>") || !strncmp(file, "<stdin", 6) || !strncmp(file, "<python-input", 13);
}

PyObject *import_unseen(const char *name)
{
    bool there = imported_module(name) != NULL;
    PyObject *module = py.PyImport_ImportModule(name), *modules = py.PySys_GetObject("modules"), *popped = NULL;
    if (module && modules && !there)
        popped = py.PyObject_CallMethod(modules, "pop", "sO", name, py.none);
    if (popped)
        py.Py_DecRef(popped);
    py.PyErr_Clear();
    return module;
}

PyObject *new_function(struct method *method)
{
    method->flags = METH_FASTCALL;
    return py.PyCFunction_NewEx(method, NULL, NULL);
}

PyObject *code_of_frame(const void *frame)
{
    if (at->frame_owner >= 0 && *((const signed char *)frame + at->frame_owner) >= at->owner_shim)
        return NULL;
    /* From 3.14 on the low bits are a tag. */
    PyObject *code = (PyObject *)((uintptr_t)pointer_at(frame, at->frame_code) & ~(uintptr_t)3);
    return code && type_of(code) == py.code_type ? code : NULL;
}
