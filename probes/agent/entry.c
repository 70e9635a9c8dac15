/* How the agent comes to life: preloaded, loaded into a running Python, or called. */
#define _GNU_SOURCE
#include "agent.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "arena.h"
#include "cpython.h"
#include "interpreters.h"
#include "options.h"
#include "preload.h"
#include "session.h"

static char directory[PATH_MAX];
static bool awaiting, missing; /* there is a Python, and there was none yet */
static bool hears;             /* audit events */

/* CPython frees its record of the audit hook at its end by the allocator that it has then, which is not the one that it was made by where the
 * program has asked for another (-X dev, PYTHONMALLOC): that ends the program. So the record is noted, and not freed. */
static struct allocator raw;
static void *record;

static void *note(void *context, size_t size)
{
    return record = raw.malloc(context, size);
}

static void free_others(void *context, void *memory)
{
    if (memory != record) {
        raw.free(context, memory);
        return;
    }
    record = NULL;
    py.PyMem_SetAllocator(0, &raw);
}

static int add_audit_hook(audit_function hook)
{
    if (!py.PyMem_GetAllocator || !py.PyMem_SetAllocator)
        return py.PySys_AddAuditHook(hook, NULL);
    py.PyMem_GetAllocator(0, &raw);
    struct allocator noting = raw;
    noting.malloc = note;
    py.PyMem_SetAllocator(0, &noting);
    int failed = py.PySys_AddAuditHook(hook, NULL);
    py.PyMem_SetAllocator(0, &raw);
    return failed;
}

static void keep_record(void)
{
    struct allocator keeping;
    py.PyMem_GetAllocator(0, &keeping);
    if (keeping.free == free_others)
        return;
    raw = keeping;
    keeping.free = free_others;
    py.PyMem_SetAllocator(0, &keeping);
}

static bool text_is(PyObject *text, bool (*fits)(const char *))
{
    const char *characters = text ? py.PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    bool is = characters && fits(characters);
    if (text)
        py.Py_DecRef(text);
    py.PyErr_Clear();
    return is;
}

/* A module that Python imports by itself before a program runs: as it is made, and where it reads from a terminal or a pipe. */
static bool is_its_own_module(const char *name)
{
    return !strcmp(name, "site") || !strcmp(name, "readline") || !strcmp(name, "rlcompleter");
}

static bool is_its_own_file(const char *name)
{
    static const char codecs[] = "/encodings/__init__.py";
    size_t length = strlen(name);
    return !strncmp(name, "<frozen ", 8) || (length >= sizeof codecs && !strcmp(name + length + 1 - sizeof codecs, codecs));
}

/* The file of the outermost frame; NULL = there is none. */
static PyObject *outermost_file(PyObject *frame)
{
    py.Py_IncRef(frame);
    for (PyObject *back; (back = py.PyObject_GetAttrString(frame, "f_back")) && back != py.none; frame = back)
        py.Py_DecRef(frame);
    PyObject *code = py.PyObject_GetAttrString(frame, "f_code"), *file = code ? py.PyObject_GetAttrString(code, "co_filename") : NULL;
    py.Py_DecRef(frame);
    if (code)
        py.Py_DecRef(code);
    return file;
}

/* Does the program's own code run, or is it about to? Python says so of a main program. What embeds it has none, and is there when it executes or
 * imports something, or when code does that neither Python's import nor its search for a codec has called. */
static bool is_beginning(const char *event, PyObject *arguments)
{
    if (!strncmp(event, "cpython.run_", 12))
        return true;
    bool executes = !strcmp(event, "exec");
    if ((!executes && strcmp(event, "import")) || !py.Py_IsInitialized() || !cpython_is_main())
        return false;
    PyObject *frame = py.PyEval_GetFrame();
    if (frame)
        return !text_is(outermost_file(frame), is_its_own_file);
    return executes || !text_is(py.PyObject_CallMethod(arguments, "__getitem__", "i", 0), is_its_own_module);
}

/* The interpreter is complete where it says such things, and its lock is this thread's. */
static int on_audit(const char *event, PyObject *arguments, void *unused)
{
    (void)unused;
    if (UNLIKELY(record && *event == 'c' && !strcmp(event, "cpython._PySys_ClearAuditHooks"))) {
        keep_record();
        return 0;
    }
    if (UNLIKELY(interpreters_listen && (*event == 'c' || *event == 'e')))
        interpreters_hear(event);
    if (LIKELY(!awaiting) || !is_beginning(event, arguments))
        return 0;
    awaiting = false;
    session_begin_here(directory);
    return 0;
}

static void hear(void)
{
    if (!hears)
        hears = !py.PySys_AddAuditHook(on_audit, NULL);
    py.PyErr_Clear();
}

static void await_next(const char *where)
{
    snprintf(directory, sizeof directory, "%s", where);
    awaiting = hears = !add_audit_hook(on_audit);
}

static void await_program(void)
{
    if (!options.follow)
        preload_leave();
    awaiting = hears = !add_audit_hook(on_audit);
}

__attribute__((constructor)) static void loaded(void)
{
    Dl_info self;
    session_interpreter_gone = await_next;
    interpreters_ask_to_hear = hear;
    if (!__register_atfork || !dladdr || !dladdr(&directory, &self) || !self.dli_fname || !strchr(self.dli_fname, '/'))
        return;
    preload_is(self.dli_fname);
    snprintf(directory, sizeof directory, "%.*s", (int)(strrchr(self.dli_fname, '/') - self.dli_fname), self.dli_fname);
    if (!options_read(directory))
        return;
    if (!cpython_find()) {
        missing = true;
        return;
    }
    if (py.Py_IsInitialized()) {
        session_begin(directory, false);
        return;
    }
    await_program();
}

/* The C library's door for profilers: every library calls it as it is loaded, if somebody has it. So a libpython is seen that a program loads
 * later on, as PyInstaller's and mod_wsgi do. */
EXPORT void __gmon_start__(void)
{
    if (LIKELY(!missing))
        return;
    missing = false; /* to look for it may load another library */
    if (cpython_find())
        await_program();
    else
        missing = true;
}

EXPORT int pytrace_begin(const char *where)
{
    return session_begin(where, false) ? 0 : -1;
}

EXPORT int pytrace_begin_pending(void *where)
{
    session_begin(where, true);
    return 0;
}

EXPORT void pytrace_look(void)
{
    session_look(false);
}

EXPORT int pytrace_look_pending(void *unused)
{
    (void)unused;
    session_look(true);
    return 0;
}

EXPORT void pytrace_anchor(uint32_t clock, uint64_t moment[2])
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 16; i++) {
        uint64_t before = stamp_of(clock), ns = clock_ns(), after = stamp_of(clock);
        if (after - before >= best)
            continue;
        best = after - before;
        moment[0] = before + best / 2;
        moment[1] = ns;
    }
}
