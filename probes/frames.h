/* The frames of CPython's interpreter as a probe finds them: their code, the frame below, whether a generator resumes or yields. */
#ifndef PYTRACE_FRAMES_H
#define PYTRACE_FRAMES_H

#include "common.h"

/* Offsets, by the names that record/cpython/layout.py has for them, which says more of each. */
struct frame_layout {
    __s32 frame_code;
    __s32 frame_previous;
    __s32 frame_owner;
    __s32 owner_shim; /* owners from this on are no Python frames */
    __s32 frame_position;
    __s32 frame_stacktop;  /* 3.8, 3.9 */
    __s32 generator_state; /* 3.10, 3.11 */
    __s32 yield_opcode;    /* 3.15 */
    __s32 code_flags;
    __s32 code_first_line;
    __s32 code_qualname;
    __s32 code_start; /* 3.11 on */
    __s32 string_data;
    __s32 pad;
};
#define ABSENT (-0x7fffffff - 1) /* this Python has no such thing */

#define OWNED_BY_THREAD 0
#define OWNED_BY_GENERATOR 1
#define SUSPENDED (-1) /* FRAME_SUSPENDED of 3.10 and 3.11 */

static __always_inline __u64 code_of(const struct frame_layout *layout, __u64 frame)
{
    return frame ? TAKE(__u64, frame + layout->frame_code) & ~3ULL : 0; /* 3.14+ tags the low bits */
}

static __always_inline __u64 previous(const struct frame_layout *layout, __u64 frame)
{
    return TAKE(__u64, frame + layout->frame_previous);
}

static __always_inline int is_python(const struct frame_layout *layout, __u64 frame)
{
    return layout->frame_owner == ABSENT || TAKE(__u8, frame + layout->frame_owner) < layout->owner_shim;
}

/* Had the frame, of a generator, yielded before it was entered now? */
static __always_inline int resumes(const struct frame_layout *layout, __u64 frame)
{
    if (layout->code_start != ABSENT) {
        __u64 start = code_of(layout, frame) + layout->code_start;
        __s64 position = TAKE(__u64, frame + layout->frame_position) - start;

        /* Behind _co_firsttraceable; where the next instruction is what the frame has, one more. */
        return position > 2 * (__s64)TAKE(__s32, start - 16) + 2;
    }
    return TAKE(__s32, frame + layout->frame_position) >= 0;
}

/* Is the frame left by yielding? Asked of the frame alone: a namesake's flags may stand for its function at a return. */
static __always_inline int yields(const struct frame_layout *layout, __u64 frame)
{
    if (layout->frame_owner != ABSENT && (!frame || TAKE(__u8, frame + layout->frame_owner) != OWNED_BY_GENERATOR))
        return 0;
    if (layout->frame_stacktop != ABSENT)
        return frame && TAKE(__u64, frame + layout->frame_stacktop) != 0;
    if (layout->generator_state != ABSENT)
        return frame && TAKE(__s8, frame + layout->generator_state) == SUSPENDED;
    /* Its state is set later. A frame that an exception is thrown into stands there, too, when it is left at once; it has no entry. */
    return TAKE(__u8, TAKE(__u64, frame + layout->frame_position) - 2) == layout->yield_opcode;
}

#endif
