/* Reads the options of a session and judges by them which functions are wanted. */
#define _GNU_SOURCE
#include "options.h"

#include <ctype.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "build.h"

struct options options;
static char text[1 << 16]; /* the patterns lie in it */

/* KIND ARGUMENTS MODULE.QUALNAME */
static void read_client(char *value)
{
    char *arguments = strchr(value, ' '), *function = arguments ? strchr(arguments + 1, ' ') : NULL, *name;
    if (!function || options.clients == MAX_PATTERNS)
        return;
    *arguments++ = *function++ = 0;
    struct client *client = &options.client[options.clients++];
    *client = (struct client){.kind = *value, .function = function};
    while (arguments && *arguments != '-' && client->arguments < MOST_ARGUMENTS && (name = strsep(&arguments, ",")) && *name)
        client->argument[client->arguments++] = name;
}

static void read_line(char *line)
{
    char *value = strchr(line, '=');
    if (!value)
        return;
    *value++ = 0;
    if (!strcmp(line, "client")) {
        read_client(value);
        return;
    }
    options.names_main |= *value == '_' || strpbrk(value, "*?[") == value;
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
    else if (!strcmp(line, "raw_statements"))
        options.raw_statements = atoi(value);
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

static bool is_below_lib(const char *file, const char *slash)
{
    static const char *const folders[] = {"/lib", "/lib32", "/lib64"};
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(folders[i]);
        if (slash - file >= (ptrdiff_t)length && !memcmp(slash - length, folders[i], length))
            return true;
    }
    return false;
}

/* Length of a library folder's name behind a slash of the file, up to its closing slash; 0 = it is none. trace/libraries.py says it of a path. */
static size_t library_folder(const char *file, const char *slash)
{
    const char *part = slash + 1;
    static const char *const folders[] = {"site-packages", "dist-packages"};
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(folders[i]);
        if (!strncmp(part, folders[i], length) && part[length] == '/')
            return length;
    }
    if (strncmp(part, "python3", 7) || !is_below_lib(file, slash))
        return 0;
    const char *end = part + 7;
    if (isdigit((unsigned char)end[*end == '.'])) {
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
            size_t length = library_folder(file, slash);
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

static bool fits(const char *pattern, const char *text)
{
    return !fnmatch(pattern, text, FNM_NOESCAPE);
}

/* A function, as patterns look at it; pytrace_ebpf/patterns.py has the same rules. */
struct subject {
    const char *file, *qualname; /* the plain name where it `is_bare` */
    bool is_bare, is_main;
    char module[PATH_MAX], folders[PATH_MAX]; /* folders: the file's path with dots, where it is no library's; else "" */
};

static void describe(struct subject *s, const char *file, const char *qualname, bool is_bare, bool is_main)
{
    *s = (struct subject){.file = file, .qualname = qualname, .is_bare = is_bare, .is_main = is_main};
    module_of(file, s->module);
    size_t length = strlen(file), module = strlen(s->module);
    if (*file != '/' || strchr(s->module, '.') || length < module + 4 || file[length - module - 4] != '/' || strncmp(file + length - module - 3, s->module, module))
        return; /* it is not a file of the program's own: FOLDER/MODULE.py */
    snprintf(s->folders, sizeof s->folders, "%.*s", (int)(length - 4), file + 1);
    size_t end = strlen(s->folders);
    if (end > 9 && !strcmp(s->folders + end - 9, "/__init__"))
        s->folders[end - 9] = 0;
    for (char *c = s->folders; (c = strchr(c, '/')); c++)
        *c = '.';
}

/* What a module of the program's own may be called, or a package above it, with what follows it (NULL = nothing), fits. */
static bool fits_folders(const struct subject *s, const char *pattern, const char *follows)
{
    char above[PATH_MAX], whole[2 * PATH_MAX];
    snprintf(above, sizeof above, "%s", s->folders);
    for (char *dot; (dot = strrchr(above, '.')); *dot = 0)
        for (const char *start = above; start < dot; start = strchr(start, '.') + 1) {
            snprintf(whole, sizeof whole, "%s%s%s", start, follows ? "." : "", follows ? follows : "");
            if (fits(pattern, whole))
                return true;
        }
    return false;
}

static bool fits_file(const struct subject *s, const char *pattern)
{
    char text_[PATH_MAX + 8];
    if (strchr(pattern, '/')) {
        pattern += 2 * !strncmp(pattern, "./", 2);
        snprintf(text_, sizeof text_, "*/%s", pattern);
        return fits(pattern, s->file) || (*pattern != '/' && fits(text_, s->file));
    }
    const char *slash = strrchr(s->file, '/');
    if ((s->is_main && fits(pattern, "__main__")) || fits(pattern, slash ? slash + 1 : s->file))
        return true;
    snprintf(text_, sizeof text_, "%s", s->module);
    for (;;) {
        if (fits(pattern, text_))
            return true;
        char *dot = strrchr(text_, '.');
        if (!dot)
            break;
        *dot = 0;
    }
    return strchr(pattern, '.') && fits_folders(s, pattern, NULL);
}

/* As fits_file, and by the folder that a file of the program's own lies in. */
static bool fits_package(const struct subject *s, const char *pattern)
{
    if (fits_file(s, pattern))
        return true;
    if (strchr(pattern, '/') || !*s->folders)
        return false;
    char folder[PATH_MAX];
    const char *slash = strrchr(s->file, '/');
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - s->file), s->file);
    slash = strrchr(folder, '/');
    return slash && slash[1] && fits(pattern, slash + 1);
}

static bool fits_bare(const struct subject *s, const char *pattern, const char *module)
{
    const char *last = strrchr(pattern, '.');
    if (!last || !fits(last + 1, s->qualname))
        return false;
    char head[PATH_MAX];
    snprintf(head, sizeof head, "%.*s", (int)(last - pattern), pattern);
    if (!strchr(head, '.'))
        return true; /* a class, or a module: who knows? */
    for (;;) {
        if (fits(head, module))
            return true;
        char *dot = strrchr(head, '.');
        if (!dot)
            return false;
        *dot = 0;
    }
}

static bool fits_function(const struct subject *s, const char *pattern)
{
    if (fits_file(s, pattern))
        return true;
    const char *dot = strrchr(s->qualname, '.');
    if (strchr(pattern, '/'))
        return false;
    if (fits(pattern, s->qualname) || fits(pattern, dot ? dot + 1 : s->qualname))
        return true;
    char whole[2 * PATH_MAX];
    const char *modules[] = {s->module, s->is_main ? "__main__" : s->module};
    for (int i = 0; i < 2; i++) {
        snprintf(whole, sizeof whole, "%s.%s", modules[i], s->qualname);
        if (fits(pattern, whole) || (s->is_bare && fits_bare(s, pattern, modules[i])))
            return true;
    }
    const char *first_dot = strchr(pattern, '.');
    return first_dot && strchr(first_dot + 1, '.') && fits_folders(s, pattern, s->qualname);
}

bool options_want(const char *file, bool is_client, bool is_main)
{
    if (LIKELY(!options.includes && !options.excludes))
        return true;
    struct subject s;
    describe(&s, file, "", false, is_main);
    bool wanted = !options.includes || is_client;
    for (int i = 0; i < options.includes && !wanted; i++)
        wanted = fits_package(&s, options.include[i]);
    for (int i = 0; i < options.excludes && wanted; i++)
        wanted = !fits_package(&s, options.exclude[i]);
    return wanted;
}

bool options_ask_for_main(void)
{
    return options.names_main;
}

static bool names_function(const char *const *patterns, int count, const char *file, const char *qualname, bool is_bare, bool is_main)
{
    struct subject s;
    describe(&s, file, qualname, is_bare, is_main);
    for (int i = 0; i < count; i++)
        if (fits_function(&s, patterns[i]))
            return true;
    return false;
}

bool options_want_values(const char *file, const char *qualname, bool is_bare, bool is_main)
{
    return UNLIKELY(options.args) && names_function(options.arg, options.args, file, qualname, is_bare, is_main);
}

bool options_want_lines(const char *file, const char *qualname, bool is_bare, bool is_main)
{
    return UNLIKELY(options.lines) && (!options.lined || names_function(options.lines_of, options.lined, file, qualname, is_bare, is_main));
}

bool options_want_opcodes(const char *file, const char *qualname, bool is_bare, bool is_main)
{
    return UNLIKELY(options.opcodes) && (!options.executed || names_function(options.opcodes_of, options.executed, file, qualname, is_bare, is_main));
}

int options_client(const char *file, const char *qualname, bool is_bare)
{
    if (!options.clients || *file == '<')
        return -1;
    char module[PATH_MAX];
    module_of(file, module);
    size_t size = strlen(module);
    for (int i = 0; i < options.clients; i++) {
        const char *name = options.client[i].function;
        if (*name != *module || strncmp(name, module, size) || name[size] != '.')
            continue;
        const char *last = is_bare ? strrchr(name, '.') : NULL; /* its class is not known */
        if (!strcmp(last ? last + 1 : name + size + 1, qualname))
            return i;
    }
    return -1;
}

bool options_redact(const char *name)
{
    for (int i = 0; i < options.redacts; i++)
        if (!fnmatch(options.redact[i], name, FNM_NOESCAPE | FNM_CASEFOLD))
            return true;
    return false;
}
