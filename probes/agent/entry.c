/* How the agent comes to life: preloaded, loaded into a running Python, or called. */
#define _GNU_SOURCE
#include "agent.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arena.h"
#include "cpython.h"
#include "options.h"
#include "session.h"

static char library[PATH_MAX], directory[PATH_MAX];
static bool awaiting;

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
    if (memory != record)
        raw.free(context, memory);
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
    py.PyMem_GetAllocator(0, &raw);
    struct allocator keeping = raw;
    keeping.free = free_others;
    py.PyMem_SetAllocator(0, &keeping);
}

/* Python says that the program's own code is about to run: the interpreter is complete, and its lock is this thread's. */
static int on_audit(const char *event, PyObject *arguments, void *unused)
{
    (void)arguments, (void)unused;
    if (UNLIKELY(record && *event == 'c' && !strcmp(event, "cpython._PySys_ClearAuditHooks"))) {
        keep_record();
        return 0;
    }
    if (LIKELY(!awaiting) || strncmp(event, "cpython.run_", 12) || getpid() != syscall(SYS_gettid))
        return 0;
    awaiting = false;
    session_begin_here(directory);
    return 0;
}

/* Keep the agent out of the processes that the program starts. */
static void leave_environment(void)
{
    const char *preload = getenv("LD_PRELOAD");
    char rest[PATH_MAX] = "", *copy = preload ? strdup(preload) : NULL, *next = copy, *one;
    while ((one = strsep(&next, ": ")))
        if (*one && strcmp(one, library) && strlen(rest) + strlen(one) + 2 < sizeof rest)
            sprintf(rest + strlen(rest), "%s%s", *rest ? ":" : "", one);
    free(copy);
    if (*rest)
        setenv("LD_PRELOAD", rest, 1);
    else
        unsetenv("LD_PRELOAD");
}

__attribute__((constructor)) static void loaded(void)
{
    Dl_info self;
    if (!dladdr || !dladdr(&library, &self) || !self.dli_fname || !strchr(self.dli_fname, '/'))
        return;
    snprintf(library, sizeof library, "%s", self.dli_fname);
    snprintf(directory, sizeof directory, "%.*s", (int)(strrchr(library, '/') - library), library);
    if (!options_read(directory) || !cpython_find())
        return;
    if (py.Py_IsInitialized()) {
        session_begin(directory);
        return;
    }
    if (!options.follow)
        leave_environment();
    awaiting = !add_audit_hook(on_audit);
}

EXPORT int pytrace_begin(const char *where)
{
    return session_begin(where);
}

EXPORT int pytrace_begin_pending(void *where)
{
    session_begin(where);
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
