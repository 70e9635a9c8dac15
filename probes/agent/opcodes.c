/* Counts instructions in records that lie in the arena, where the tracer finds them also of a program that was killed.
 *
 * A record is that of all instructions of a function that have the same line, number and form, whichever code object they are in: a
 * program that compiles the same again and again has the same ones. The form is what stood in the code before its instructions were
 * reported: from then on the interpreter executes the general instruction and specializes nothing, on every version.
 *
 * The time of an instruction is its thread's until the next one that is counted, or until the function is left: from then on it
 * is that of the caller's, which has not ended. So the time of a function's instructions is its own time. */
#define _GNU_SOURCE
#include "opcodes.h"

#include <string.h>
#include <sys/mman.h>

#include "options.h"
#include "pages.h"

#define LENGTH 16              /* PyVarObject.ob_size: of a code object from 3.11 on its code units, of a bytes object its bytes */
#define BYTES 32               /* of a bytes object: where they are */
#define MOST_UNITS (1 << 22)   /* of a code object */
#define SMALLEST 8             /* bits of the size of a block of memory */
#define LARGEST 20             /* blocks that are larger are mapped one by one */
#define SLAB (256 << 10)
#define CACHES 16              /* more units than an instruction has behind it */
#define FRAMES 64              /* so far out a caller is looked for whose instructions are counted */

/* What is known of a code object's instructions, by their units. */
struct executed {
    uint32_t units, bits;   /* bits: of the size of this block */
    struct opcode **record; /* NULL = was not executed yet */
    uint8_t *opcode, *form;
};

static report_instructions report;
static struct opcode **table; /* the records by what they are of */
static size_t table_mask, table_used;
static void *spare[LARGEST + 1]; /* blocks of each size, the first word of each being the next one */

/* --- memory --- */

static void *take_block(uint32_t bits)
{
    size_t size = (size_t)1 << bits;
    if (bits > LARGEST)
        return pages(size);
    if (!spare[bits]) {
        size_t slab = size > SLAB ? size : SLAB;
        char *memory = pages(slab);
        for (size_t at = 0; memory && at < slab; at += size) {
            *(void **)(memory + at) = spare[bits];
            spare[bits] = memory + at;
        }
    }
    void *block = spare[bits];
    if (block) {
        spare[bits] = *(void **)block;
        memset(block, 0, size);
    }
    return block;
}

static void give_block(void *block, uint32_t bits)
{
    if (bits > LARGEST) {
        munmap(block, (size_t)1 << bits);
        return;
    }
    *(void **)block = spare[bits];
    spare[bits] = block;
}

/* --- records --- */

static size_t slot_of(uint32_t function, uint32_t line, uint32_t opcode, uint32_t form)
{
    uint64_t mixed = ((uint64_t)function << 32 | line) * 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ mixed >> 29 ^ (opcode << 8 | form)) * 0xbf58476d1ce4e5b9ull;
    return mixed >> 32 & table_mask;
}

static bool grow_table(void)
{
    size_t size = table ? 2 * (table_mask + 1) : 4096, old_size = table ? table_mask + 1 : 0;
    struct opcode **old = table, **bigger = pages(size * sizeof *bigger);
    if (!bigger)
        return false;
    table = bigger;
    table_mask = size - 1;
    for (size_t i = 0; i < old_size; i++)
        if (old[i]) {
            size_t to = slot_of(old[i]->function, old[i]->line, old[i]->opcode, old[i]->form);
            while (table[to])
                to = (to + 1) & table_mask;
            table[to] = old[i];
        }
    if (old)
        munmap(old, old_size * sizeof *old);
    return true;
}

/* NULL where there is no room. */
static struct opcode *record_of(uint32_t function, uint32_t line, uint8_t opcode, uint8_t form)
{
    if (table_used * 2 >= table_mask && !grow_table())
        return NULL;
    size_t i = slot_of(function, line, opcode, form);
    while (table[i] && !(table[i]->function == function && table[i]->line == line && table[i]->opcode == opcode && table[i]->form == form))
        i = (i + 1) & table_mask;
    if (!table[i] && (table[i] = arena_add_opcode())) {
        *table[i] = (struct opcode){.function = function, .line = line, .opcode = opcode, .form = form};
        arena_opcode_added();
        table_used++;
    }
    return table[i];
}

static __attribute__((noinline)) struct opcode *first_record(struct function_entry *function, uint32_t unit)
{
    struct executed *of = function->executed;
    PyObject *type, *value, *traceback;
    if (!of || unit >= of->units || !function->id)
        return NULL;
    py.PyErr_Fetch(&type, &value, &traceback);
    int line = py.PyCode_Addr2Line(function->code, 2 * unit);
    py.PyErr_Restore(type, value, traceback);
    return of->record[unit] = record_of(function->id, line > 0 ? line : 0, of->opcode[unit], of->form[unit]);
}

/* --- code --- */

/* What stands there is what CPython had made of it. FORM_UNKNOWN: nothing yet, as it has not been executed often enough. */
static uint8_t form_at(const uint8_t *adaptive, uint32_t unit, uint32_t units, uint8_t opcode)
{
    uint8_t form = adaptive[2 * unit];
    uint16_t counter = unit + 1 < units ? *(const uint16_t *)(adaptive + 2 * unit + 2) : 0;
    bool fresh = counter == at->counter_fresh || counter == 1; /* it is there where CPython specializes an instruction */
    return form == opcode ? (fresh || at->counter_fresh == 0 ? FORM_UNKNOWN : form) : at->counter_fresh == 0 && fresh ? FORM_UNKNOWN : form;
}

static struct executed *look_at(PyObject *code, PyObject *bytes)
{
    int64_t length = *(int64_t *)((char *)bytes + LENGTH);
    uint32_t units = length / 2, bits = SMALLEST;
    if (length <= 0 || units > MOST_UNITS)
        return NULL;
    size_t size = sizeof(struct executed) + (size_t)units * (sizeof(struct opcode *) + 2);
    while ((size_t)1 << bits < size)
        bits++;
    struct executed *of = take_block(bits);
    if (!of)
        return NULL;
    of->units = units;
    of->bits = bits;
    of->record = (struct opcode **)(of + 1);
    of->opcode = (uint8_t *)(of->record + units);
    of->form = of->opcode + units;
    const uint8_t *general = (uint8_t *)bytes + BYTES, *adaptive = at->code_start >= 0 ? (uint8_t *)code + at->code_start : NULL;
    bool same_length = adaptive && *(int64_t *)((char *)code + LENGTH) == units;
    for (uint32_t i = 0; i < units; i++) {
        of->opcode[i] = general[2 * i];
        of->form[i] = same_length ? form_at(adaptive, i, units, of->opcode[i]) : FORM_UNKNOWN;
    }
    return of;
}

/* Its code is looked at, and its instructions are reported from then on. */
static void watch(struct function_entry *function)
{
    if (function->executed)
        return;
    PyObject *bytes = py.PyObject_GetAttrString(function->code, "co_code");
    function->executed = bytes ? look_at(function->code, bytes) : NULL;
    if (bytes)
        py.Py_DecRef(bytes);
    bool reported = function->executed && (!report || report(function->code, true));
    if (!reported)
        arena->opcodes_dropped++;
    py.PyErr_Clear();
}

static void forget(struct function_entry *function)
{
    give_block(function->executed, function->executed->bits);
    function->executed = NULL;
}

uint32_t opcodes_unit_of(const void *frame)
{
    if (at->code_start < 0)
        return *(const int32_t *)((const char *)frame + at->frame_position) / (py.version < 0x030a0000 ? 2 : 1);
    uintptr_t code = (uintptr_t)pointer_at(frame, at->frame_code) & ~(uintptr_t)3;
    return (instruction_of_frame(frame) - code - at->code_start) / 2;
}

/* --- counting --- */

static inline void go_on(struct writer *w, struct opcode *record)
{
    uint64_t now = stamp_of(options.clock);
    if (LIKELY(w->executing != NULL) && LIKELY(now > w->executing_since))
        w->executing->ticks += now - w->executing_since;
    w->executing = record;
    w->executing_since = now;
}

void opcodes_count(struct writer *w, struct function_entry *function, uint32_t unit)
{
    struct executed *of = function->executed;
    struct opcode *record = LIKELY(of && unit < of->units) ? of->record[unit] : NULL;
    if (UNLIKELY(!record) && !(record = first_record(function, unit)))
        arena->opcodes_dropped++;
    else
        record->count++;
    if (LIKELY(w != NULL))
        go_on(w, record);
}

/* Whether the instruction at which a frame is left was counted last: the one before its position where it stands behind it (3.13 on). */
static bool executes(const struct writer *w, const struct executed *of, uint32_t unit)
{
    const struct opcode *last = w->executing;
    return of && last && ((unit < of->units && of->record[unit] == last) || (unit && unit <= of->units && of->record[unit - 1] == last));
}

/* The one that a frame is at which waits for what it called. */
static struct opcode *waiting_at(const struct executed *of, uint32_t unit)
{
    for (uint32_t back = 0; unit < of->units && back < CACHES && back <= unit; back++)
        if (of->record[unit - back])
            return of->record[unit - back];
    return NULL;
}

void opcodes_leave(struct writer *w, const struct function_entry *function, bool returns, void *frame)
{
    struct opcode *record = NULL;
    void *caller = frame ? pointer_at(frame, at->frame_previous) : NULL;
    /* The instruction with which it returns was not reported: another tool has taken over, and CPython forgets who was there first (3.13.0). */
    if (report && returns && frame && UNLIKELY(!executes(w, function->executed, opcodes_unit_of(frame))))
        arena->opcodes_dropped++;
    for (int i = 0; caller && i < FRAMES && !record; i++, caller = pointer_at(caller, at->frame_previous)) {
        PyObject *code = code_of_frame(caller);
        struct function_entry *outer = code ? function_reported(code) : NULL;
        if (!outer || !outer->executed)
            continue;
        record = waiting_at(outer->executed, opcodes_unit_of(caller));
        break;
    }
    go_on(w, record);
}

static void go_on_here(struct writer *w)
{
    go_on(w, w->executing);
}

/* --- sessions --- */

static void forget_records(void)
{
    if (table)
        munmap(table, (table_mask + 1) * sizeof *table);
    table = NULL;
    table_mask = table_used = 0;
}

void opcodes_begin(report_instructions how)
{
    report = how;
    function_executes = watch;
    function_dies = forget;
    forget_records();
}

void opcodes_begin_child(void)
{
    forget_records();
    for (size_t i = 0; functions && i <= functions->mask; i++)
        if (functions->slot[i] && functions->slot[i]->executed) {
            struct executed *of = functions->slot[i]->executed;
            memset(of->record, 0, of->units * sizeof *of->record);
        }
}

void opcodes_flush(void)
{
    if (options.opcodes)
        writers_each(go_on_here);
}

void opcodes_report(bool on)
{
    for (size_t i = 0; report && functions && i <= functions->mask; i++)
        if (functions->slot[i] && functions->slot[i]->executed)
            report(functions->slot[i]->code, on);
}

void opcodes_stop(void)
{
    for (size_t i = 0; functions && i <= functions->mask; i++) {
        struct function_entry *function = functions->slot[i];
        if (!function || !function->executed)
            continue;
        if (report)
            report(function->code, false);
        forget(function);
    }
    py.PyErr_Clear();
}
