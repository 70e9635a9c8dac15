/* The functions seen: from a code object's address to the id under which its events are written. */
#ifndef PYTRACE_FUNCTIONS_H
#define PYTRACE_FUNCTIONS_H

#include "agent.h"
#include "build.h"
#include "cpython.h"
#include "whose.h"

enum { OF_ARGS = 1, OF_CLIENT = 2 };
enum { UNREPORTED = 1, UNWANTED = 2, IMPORTS = 4, LEFT_OUT = 8, LEAVING = 16, RETURNING = 32, BACK = 64 };

struct function_entry {
    PyObject *code;
    struct function_entry *next; /* while it is spare */
    uint32_t id;
    union {
        struct {
            uint32_t flags, owner; /* owner: number of the interpreter whose code it is */
        };
        uint64_t both;
    };
    /* flags: UNREPORTED: not written to this arena yet; UNWANTED: by the filters; IMPORTS: importlib's that stands for an import;
                       LEFT_OUT: by the tracer, for a time; LEAVING: since just now; RETURNING: it was until just now; BACK: since then
                       there are calls, `odd`, whose ends are not to be written */
    uint32_t odd; /* LEFT_OUT: open calls whose ends are written all the same; BACK: those whose ends are not. See left_out.c */
    bool resumable; /* a generator, a coroutine, or both */
    uint8_t observed; /* what it is given and returns is written too: OF_ARGS; or what it is asked for: OF_CLIENT */
    uint16_t client;  /* OF_CLIENT: its place in options.client */
    bool secret;    /* but not what it returns, which is redacted */
    bool lined;     /* the lines that it comes to are written too */
    bool executes;  /* its instructions are counted too */
    struct executed *executed; /* opcodes.c; NULL = they are not */
    uint64_t lines[8]; /* where it was left lately: position + 1, so that 0 is none, and in the high half the line */
};

/* Looked at by every thread without a lock. An entry stays where it is for ever, and what is in the wrong slot just now has another `code`: while
 * a code object runs, no entry of its interpreter's but its own has it. */
struct function_table {
    size_t mask;
    struct function_entry *slot[]; /* NULL = empty */
};
extern struct function_table *functions;
/* Another one since a code object died, or other functions are recorded: what was found out before need not hold. Never 0. */
extern uint32_t functions_generation;
/* Who wants to know the file of each function that is met; NULL = nobody. */
extern void (*function_seen)(const char *file);
/* Who is to look at a function whose instructions are counted, and at one that he looked at and whose code object dies: opcodes.c. */
extern void (*function_executes)(struct function_entry *), (*function_dies)(struct function_entry *);

/* GIL held. A session begins: forget what was reported; which code objects are known is kept by a forked child alone, which hears of their deaths
 * since. NULL, or why it cannot be. */
const char *functions_begin(void);
/* GIL held. No callback comes any more, and none runs: no more deaths of code objects are told. */
void functions_end(void);
/* The entry of a code object that is not in its slot or not reported yet; NULL = it has flags. */
struct function_entry *function_unknown(PyObject *code);
/* The entry of a code object that was reported to this arena; NULL = it was not. */
struct function_entry *function_reported(PyObject *code);
/* GIL held. From now on LEFT_OUT are the functions with these ids and no others. True where one is RETURNING. */
bool functions_leave_out(const uint32_t *ids, uint32_t count);
bool function_is_left_out(uint32_t id);
/* Nothing is LEAVING or RETURNING any more; `forget`: nor BACK, and no call odd. */
void functions_settle(bool forget);
/* The entry of the function that stands for an import, which function_of leaves out; NULL = it is another. */
struct function_entry *function_importing(PyObject *code);
/* GIL held. The id of what is no Python function, by its layer (LAYER_*) and name; 0 where there is no room. */
uint32_t function_of_layer(uint32_t layer, const char *name);
/* GIL held. The record of the name of an argument or a type, whose flags are 1 where it is to be redacted; NULL where there is no room. */
const struct function *name_record(const char *name);
/* GIL held. The record of what a client library was asked for, as of a name; NULL also where there are very many already. */
const struct function *statement_record(const char *text);

static inline size_t function_slot_of(const struct function_table *table, const void *code)
{
    return ((uintptr_t)code * 0x9e3779b97f4a7c15ull) >> 32 & table->mask;
}

/* NULL = the filters do not want it, or it needs more than to be written: then function_importing has it. */
static inline struct function_entry *function_of(PyObject *code)
{
    struct function_table *table = __atomic_load_n(&functions, __ATOMIC_ACQUIRE);
    struct function_entry *entry = __atomic_load_n(&table->slot[function_slot_of(table, code)], __ATOMIC_ACQUIRE);
    if (LIKELY(entry && entry->code == code && __atomic_load_n(&entry->both, __ATOMIC_ACQUIRE) == (uint64_t)owner_here << 32))
        return entry;
    return function_unknown(code);
}

/* The line at a position in the code: remembered, as a function is left at few places. `find` is asked once for each. */
static inline uint32_t line_at(struct function_entry *entry, uint32_t position, int (*find)(PyObject *, int), PyObject *of, int where)
{
    uint32_t place = (position * 0x9e3779b1u) >> 29;
    uint64_t known = __atomic_load_n(&entry->lines[place], __ATOMIC_RELAXED);
    if (UNLIKELY((uint32_t)known != position + 1)) {
        int line = find(of, where);
        known = (uint64_t)(line > 0 ? line & 0x1ffffff : 0) << 32 | (position + 1);
        __atomic_store_n(&entry->lines[place], known, __ATOMIC_RELAXED);
    }
    return known >> 32;
}

#endif
