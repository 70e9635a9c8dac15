/* The line that a call was made from: where its caller's frame stands, found once for each such place. */
#ifndef PYTRACE_CALLERS_H
#define PYTRACE_CALLERS_H

#include "build.h"
#include "cpython.h"
#include "functions.h"

#define PLACES 4096 /* that are remembered */
#define NO_CALLER UINT32_MAX /* as a line: the frame is the interpreter's own, and the caller is the one behind it */

/* An instruction of a code object, and its line. Written and read by several threads at once where there is no GIL: what of it is not of one
 * piece shows, as `check` is both words exclusive-or'd (R. Hyatt, T. Mann: A Lockless Transposition-Table Implementation, 2002). */
struct place {
    uint64_t check; /* instruction ^ known */
    uint64_t known; /* the line, and in the high half the generation: it holds while that equals functions_generation */
};
extern struct place places[PLACES];

/* The line of a frame whose place is not remembered; 0: it is not recorded, or has none. */
uint32_t line_of_frame(struct place *place, uint64_t instruction, void *frame);

/* A number of its current instruction, which no other instruction has. */
static inline uint64_t instruction_of(const void *frame)
{
    if (at->code_start >= 0)
        return instruction_of_frame(frame);
    return (uint64_t)(uintptr_t)pointer_at(frame, at->frame_code) << 17 ^ *(const uint32_t *)((const char *)frame + at->frame_position);
}

/* The line that a frame stands at; 0 = not known; NO_CALLER: see there. GIL held. */
static inline uint32_t line_of(const void *frame)
{
    uint64_t instruction = instruction_of(frame);
    struct place *place = &places[(instruction * 0x9e3779b97f4a7c15ull) >> 52];
    uint64_t known = __atomic_load_n(&place->known, __ATOMIC_RELAXED), check = __atomic_load_n(&place->check, __ATOMIC_RELAXED);
    bool holds = LIKELY((check ^ known) == instruction && known >> 32 == functions_generation);
    return holds ? (uint32_t)known : line_of_frame(place, instruction, (void *)frame);
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
