/* Finds the line at which a frame stands. */
#include "callers.h"

struct place places[PLACES];

uint32_t line_of_frame(struct place *place, uint64_t instruction, void *frame)
{
    PyObject *code = code_of_frame(frame);
    bool within_code = at->code_start >= 0;
    int64_t position = code && within_code ? (int64_t)instruction - (int64_t)(uintptr_t)code - at->code_start : 0;
    /* The interpreter's own, which comes between __init__ and its caller, never gets to where its own code would begin. */
    if (!code || (within_code && !is_behind_start(code, position + 1))) {
        *place = (struct place){instruction, NO_CALLER, functions_generation};
        return NO_CALLER;
    }
    struct function_entry *function = function_reported(code);
    if (!function || function->flags & ~IMPORTS) /* not remembered: that may change */
        return 0;
    int line = within_code ? py.PyCode_Addr2Line(code, (int)position) : py.PyFrame_GetLineNumber((PyObject *)frame);
    uint32_t known = line > 0 ? line & 0x1ffffff : 0;
    *place = (struct place){instruction, known, functions_generation};
    return known;
}
