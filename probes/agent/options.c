/* Reads the options of a session and judges by them which functions are wanted. */
#define _GNU_SOURCE
#include "options.h"

#include <ctype.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "build.h"

struct options options;
static char text[1 << 16]; /* the patterns lie in it */

static void read_line(char *line)
{
    char *value = strchr(line, '=');
    if (!value)
        return;
    *value++ = 0;
    if (!strcmp(line, "clock"))
        options.clock = strcmp(value, "tsc") ? CLOCK_IS_MONOTONIC : CLOCK_IS_TSC;
    else if (!strcmp(line, "follow"))
        options.follow = atoi(value);
    else if (!strcmp(line, "wait_ms"))
        options.wait_ns = strtoull(value, NULL, 10) * 1000000;
    else if (!strcmp(line, "chunk_records"))
        options.chunk_records = strtoul(value, NULL, 10);
    else if (!strcmp(line, "arena_bytes"))
        options.arena_bytes = strtoull(value, NULL, 10);
    else if (!strcmp(line, "arena_first"))
        options.arena_first = strtoull(value, NULL, 10);
    else if (!strcmp(line, "memory_bytes"))
        options.memory_bytes = strtoull(value, NULL, 10);
    else if (!strcmp(line, "arenas"))
        snprintf(options.arenas, sizeof options.arenas, "%s", value);
    else if (!strcmp(line, "max_depth"))
        options.max_depth = strtoul(value, NULL, 10);
    else if (!strcmp(line, "c_calls"))
        options.c_calls = atoi(value);
    else if (!strcmp(line, "lines"))
        options.lines = atoi(value);
    else if (!strcmp(line, "opcodes"))
        options.opcodes = atoi(value);
    else if (!strcmp(line, "memory"))
        options.memory = atoi(value);
    else if (!strcmp(line, "main_only"))
        options.main_only = atoi(value);
    else if (!strcmp(line, "include") && options.includes < MAX_PATTERNS)
        options.include[options.includes++] = value;
    else if (!strcmp(line, "exclude") && options.excludes < MAX_PATTERNS)
        options.exclude[options.excludes++] = value;
    else if (!strcmp(line, "args") && options.args < MAX_PATTERNS)
        options.arg[options.args++] = value;
    else if (!strcmp(line, "redact") && options.redacts < MAX_PATTERNS)
        options.redact[options.redacts++] = value;
    else if (!strcmp(line, "lines_of") && options.lined < MAX_PATTERNS)
        options.lines_of[options.lined++] = value;
    else if (!strcmp(line, "opcodes_of") && options.executed < MAX_PATTERNS)
        options.opcodes_of[options.executed++] = value;
}

bool options_read(const char *directory)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/options", directory);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t length = 0;
    ssize_t got;
    while ((got = read(fd, text + length, sizeof text - 1 - length)) > 0)
        length += got;
    close(fd);
    text[length] = 0;

    memset(&options, 0, sizeof options);
    options.clock = CLOCK_IS_MONOTONIC;
    options.chunk_records = 16384;
    options.arena_bytes = 256 << 20;
    snprintf(options.directory, sizeof options.directory, "%s", directory);
    snprintf(options.arenas, sizeof options.arenas, "%s", directory);
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n")))
        read_line(line);
    if (options.chunk_records < 16 || options.chunk_records > MOST_CHUNK_RECORDS)
        options.chunk_records = 16384;
    return got == 0;
}

/* Length of a library folder's name at `part`, up to its closing slash; 0 = it is none. */
static size_t library_folder(const char *part)
{
    static const char *const folders[] = {"site-packages", "dist-packages"};
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(folders[i]);
        if (!strncmp(part, folders[i], length) && part[length] == '/')
            return length;
    }
    if (strncmp(part, "python3", 7))
        return 0;
    const char *end = part + 7;
    if (*end == '.' && isdigit((unsigned char)end[1])) {
        for (end++; isdigit((unsigned char)*end); end++)
            ;
        end += *end == 't'; /* without a GIL */
    }
    if (!strncmp(end, ".zip", 4))
        end += 4;
    return *end == '/' ? (size_t)(end - part) : 0;
}

static bool is_word(unsigned char c)
{
    return isalnum(c) || c == '_' || c >= 0x80;
}

void module_of(const char *file, char *module)
{
    const char *path = file, *slash = file;
    if (*file != '<') {
        const char *in_library = NULL;
        for (; (slash = strchr(slash, '/')); slash++) {
            size_t length = library_folder(slash + 1);
            if (length && slash[1 + length + 1])
                in_library = slash + 1 + length + 1;
            path = slash + 1;
        }
        if (in_library)
            path = in_library;
    }
    snprintf(module, PATH_MAX, "%s", path);
    if (*file == '<')
        return;
    char *dot = strrchr(module, '.');
    const char *end = dot ? dot + 1 : NULL;
    while (end && is_word(*end))
        end++;
    if (dot && dot[1] && !*end) {
        *dot = 0;
        if (dot - module >= 9 && !strcmp(dot - 9, "/__init__"))
            dot[-9] = 0;
    }
    for (char *c = module; (c = strchr(c, '/')); c++)
        *c = '.';
}

static bool matches(const char *pattern, const char *file, const char *module)
{
    if (strchr(pattern, '/'))
        return !fnmatch(pattern, file, FNM_NOESCAPE);
    char package[PATH_MAX];
    snprintf(package, sizeof package, "%s", module);
    for (;;) {
        if (!fnmatch(pattern, package, FNM_NOESCAPE))
            return true;
        char *dot = strrchr(package, '.');
        if (!dot)
            return false;
        *dot = 0;
    }
}

bool options_want(const char *file)
{
    if (LIKELY(!options.includes && !options.excludes))
        return true;
    char module[PATH_MAX];
    module_of(file, module);
    bool wanted = !options.includes;
    for (int i = 0; i < options.includes && !wanted; i++)
        wanted = matches(options.include[i], file, module);
    for (int i = 0; i < options.excludes && wanted; i++)
        wanted = !matches(options.exclude[i], file, module);
    return wanted;
}

/* Up to 3.10 a code object knows its bare name alone: then what stands between the module and that in the pattern is left open. */
static bool matches_bare(const char *pattern, const char *module, const char *name)
{
    const char *last = strrchr(pattern, '.');
    if (!last || fnmatch(last + 1, name, FNM_NOESCAPE))
        return false;
    char head[PATH_MAX];
    snprintf(head, sizeof head, "%.*s", (int)(last - pattern), pattern);
    for (;;) {
        if (!fnmatch(head, module, FNM_NOESCAPE))
            return true;
        char *dot = strrchr(head, '.');
        if (!dot)
            return false;
        *dot = 0;
    }
}

static bool names_function(const char *const *patterns, int count, const char *file, const char *qualname, bool is_bare)
{
    char module[PATH_MAX], whole[2 * PATH_MAX];
    module_of(file, module);
    snprintf(whole, sizeof whole, "%s.%s", module, qualname);
    for (int i = 0; i < count; i++) {
        const char *pattern = patterns[i];
        if (matches(pattern, file, module))
            return true;
        if (!strchr(pattern, '/') && (!fnmatch(pattern, whole, FNM_NOESCAPE) || (is_bare && matches_bare(pattern, module, qualname))))
            return true;
    }
    return false;
}

bool options_want_values(const char *file, const char *qualname, bool is_bare)
{
    return UNLIKELY(options.args) && names_function(options.arg, options.args, file, qualname, is_bare);
}

bool options_want_lines(const char *file, const char *qualname, bool is_bare)
{
    return UNLIKELY(options.lines) && (!options.lined || names_function(options.lines_of, options.lined, file, qualname, is_bare));
}

bool options_want_opcodes(const char *file, const char *qualname, bool is_bare)
{
    return UNLIKELY(options.opcodes) && (!options.executed || names_function(options.opcodes_of, options.executed, file, qualname, is_bare));
}

bool options_redact(const char *name)
{
    for (int i = 0; i < options.redacts; i++)
        if (!fnmatch(options.redact[i], name, FNM_NOESCAPE | FNM_CASEFOLD))
            return true;
    return false;
}
