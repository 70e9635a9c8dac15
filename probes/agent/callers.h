/* The line that a call was made from: where its caller's frame stands, found once for each such place. */
#ifndef PYTRACE_CALLERS_H
#define PYTRACE_CALLERS_H

#include "build.h"
#include "cpython.h"
#include "functions.h"

#define PLACES 4096 /* that are remembered */
#define NO_CALLER UINT32_MAX /* place.line: the frame is the interpreter's own, and the caller is the one behind it */

/* An instruction of a code object, and its line. */
struct place {
    uint64_t instruction;
    uint32_t line;
    uint32_t generation; /* it holds while this equals functions_generation */
};
extern struct place places[PLACES];

/* The line of a frame whose place is not remembered; 0: it is not recorded, or has none. */
uint32_t line_of_frame(struct place *place, uint64_t instruction, void *frame);

/* A number of its current instruction, which no other instruction has. */
static inline uint64_t instruction_of(const void *frame)
{
    if (at->code_start >= 0)
        return (uint64_t)(uintptr_t)pointer_at(frame, at->frame_position);
    return (uint64_t)(uintptr_t)pointer_at(frame, at->frame_code) << 17 ^ *(const uint32_t *)((const char *)frame + at->frame_position);
}

/* The line that a frame stands at; 0 = not known; NO_CALLER: see place.line. GIL held. */
static inline uint32_t line_of(const void *frame)
{
    uint64_t instruction = instruction_of(frame);
    struct place *place = &places[(instruction * 0x9e3779b97f4a7c15ull) >> 52];
    bool holds = LIKELY(place->instruction == instruction && place->generation == functions_generation);
    return holds ? place->line : line_of_frame(place, instruction, (void *)frame);
}

/* The line that `frame`, which was entered just now, was called from; 0 = not known, or by what is not recorded. GIL held. */
static inline uint32_t line_called_from(const void *frame)
{
    if (UNLIKELY(!frame))
        return 0;
    for (void *caller = pointer_at(frame, at->frame_previous); caller; caller = pointer_at(caller, at->frame_previous)) {
        uint32_t line = line_of(caller);
        if (LIKELY(line != NO_CALLER))
            return line;
    }
    return 0;
}

#endif
