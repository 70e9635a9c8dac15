/* What the tracer asks of the agent: the file `options` of the session directory.
 *
 *     clock=tsc|monotonic     of the stamps
 *     follow=0|1              trace the processes that this one forks or runs
 *     wait_ms=N               how long at a time the program is held up by an event for which there is no chunk; 0 = not
 *     chunk_records=N         events in a chunk
 *     arena_bytes=N           bound for the chunks of this process
 *     arena_first=N           bytes of memory that the arena takes until the tracer has granted more; 0 = as many as it needs
 *     memory_bytes=N          bound for the table of blocks that are counted; 0 = none
 *     arenas=DIR              where the arena file is created
 *     max_depth=N             calls below this depth are not written; 0 = no bound
 *     c_calls=0|1             write calls of what is written in C as well
 *     lines=0|1               write the lines that functions come to as well
 *     opcodes=0|1             count the instructions that functions execute
 *     memory=0|1              count allocations
 *     main_only=0|1           write no calls of interpreters beside the main one
 *     include=PATTERN         only these functions, any number of times
 *     exclude=PATTERN         not these, any number of times
 *     args=PATTERN            of these functions what they are given and return is written too, any number of times
 *     lines_of=PATTERN        of these functions alone, any number of times; none = of all
 *     opcodes_of=PATTERN      likewise of instructions
 *     client=KIND ARGUMENTS MODULE.QUALNAME   of this function what it is asked for is written too, by these arguments (names with commas between them, -
 *                             for none), which are read as KIND says (statements.h, HEADERS, SPAN or OBJECT), any number of times
 *     raw_statements=0|1      with all literals
 *     redact=PATTERN          of arguments of this name, and of what functions of this name return, only the type, any number of times
 *
 * What patterns mean is said in docs/patterns.md. A pattern of redact is for the bare name, in any case.
 */
#ifndef PYTRACE_OPTIONS_H
#define PYTRACE_OPTIONS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#define MAX_PATTERNS 256
#define HEADERS 'h' /* of a client: no statement but the trace context of a request, in headers */
#define SPAN 'x'    /* the same, of a span of OpenTelemetry's */
#define OBJECT 'o'  /* no statement but which object it is that the function is called of, such as a pool: its address */
#define MOST_ARGUMENTS 2

/* A function of a client library. */
struct client {
    char kind;
    int arguments;
    const char *argument[MOST_ARGUMENTS];
    const char *function; /* MODULE.QUALNAME */
};
#define MOST_CHUNK_RECORDS (1 << 20)

struct options {
    uint32_t clock; /* CLOCK_IS_* */
    bool follow, c_calls, lines, opcodes, memory, main_only;
    bool names_main; /* a pattern may mean the main program */
    uint64_t wait_ns;
    uint32_t chunk_records, max_depth;
    uint64_t arena_bytes, arena_first, memory_bytes;
    char directory[PATH_MAX], arenas[PATH_MAX];
    int includes, excludes, args, redacts, lined, executed, clients;
    bool raw_statements;
    const char *include[MAX_PATTERNS], *exclude[MAX_PATTERNS], *arg[MAX_PATTERNS], *redact[MAX_PATTERNS], *lines_of[MAX_PATTERNS], *opcodes_of[MAX_PATTERNS];
    struct client client[MAX_PATTERNS];
};
extern struct options options;

/* Reads directory/options into `options`; false where it cannot be read. */
bool options_read(const char *directory);
/* Somebody has to find out which file the main program is of; else `is_main` below is false. */
bool options_ask_for_main(void);
/* The file's functions are wanted by include and exclude; that of a client library also where include does not name it. */
bool options_want(const char *file, bool is_client, bool is_main);
/* What the function is given and returns is wanted by args; `qualname` is the bare name where no other is known (`is_bare`). */
bool options_want_values(const char *file, const char *qualname, bool is_bare, bool is_main);
/* The function's lines are wanted by lines and lines_of. */
bool options_want_lines(const char *file, const char *qualname, bool is_bare, bool is_main);
/* Its instructions are wanted by opcodes and opcodes_of. */
bool options_want_opcodes(const char *file, const char *qualname, bool is_bare, bool is_main);
/* The place in options.client of the function; -1 = it is of no client library. */
int options_client(const char *file, const char *qualname, bool is_bare);
/* What has this name is not to be recorded, by redact. */
bool options_redact(const char *name);
/* Dotted module name by the file's place below a library folder, else the file's stem; `<...>` stays.
 * The same rule as record/cpython/functions.py follows. `module` has room for PATH_MAX bytes. */
void module_of(const char *file, char *module);

#endif
