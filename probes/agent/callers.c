/* Finds the line at which a frame stands. */
#include "callers.h"

struct place places[PLACES];

static uint32_t remember(struct place *place, uint64_t instruction, uint32_t line, uint32_t generation)
{
    uint64_t known = (uint64_t)generation << 32 | line;
    __atomic_store_n(&place->known, known, __ATOMIC_RELAXED);
    __atomic_store_n(&place->check, instruction ^ known, __ATOMIC_RELAXED);
    return line;
}

uint32_t line_of_frame(struct place *place, uint64_t instruction, void *frame)
{
    uint32_t generation = functions_generation;
    PyObject *code = code_of_frame(frame);
    bool within_code = at->code_start >= 0;
    int64_t position = code && within_code ? (int64_t)instruction - (int64_t)(uintptr_t)code - at->code_start : 0;
    /* The interpreter's own, which comes between __init__ and its caller, never gets to where its own code would begin. */
    if (!code || (within_code && !is_behind_start(code, position + 1)))
        return remember(place, instruction, NO_CALLER, generation);
    struct function_entry *function = function_reported(code);
    if (!function || function->flags & ~IMPORTS) /* not remembered: that may change */
        return 0;
    int line = within_code ? py.PyCode_Addr2Line(code, (int)position) : py.PyFrame_GetLineNumber((PyObject *)frame);
    return remember(place, instruction, line > 0 ? line & 0x1ffffff : 0, generation);
}
