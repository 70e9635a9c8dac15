/* Whether a function may be one whose values are asked for: by its file and bare name, before user space knows of it.
 *
 * A non-deterministic automaton, whose states are bits, for all patterns at once: record/usdt/matching.py makes it. It says yes too
 * often, never too rarely; user space, which has the whole name, says then which of these functions are observed.
 */
#ifndef PYTRACE_USDT_MATCHING_H
#define PYTRACE_USDT_MATCHING_H

#include "common.h"

#define STATE_WORDS 4
struct matcher {
    __u64 first[STATE_WORDS];
    __u64 last[STATE_WORDS];
    __u64 steps[256 * STATE_WORDS]; /* by the byte that is met: states that it leads on from, each to the next one */
    __u64 stays[256 * STATE_WORDS]; /* and those that it leaves as they are */
};
BPF_ARRAY(matcher, struct matcher, 1);

#define OBSERVABLE 0x80000000u /* beside co_flags */

static __always_inline void match(const struct matcher *by, __u64 *states, __u8 byte)
{
    int word;

#pragma unroll
    for (word = 0; word < STATE_WORDS; word++)
        states[word] = (states[word] & by->steps[byte * STATE_WORDS + word]) << 1 | (states[word] & by->stays[byte * STATE_WORDS + word]);
}

/* Zeros leave every state as it is: what is behind the text's end counts as that. Without a branch, so that the verifier has one path to follow. */
static __always_inline void match_text(const struct matcher *by, __u64 *states, const char *text, __u32 size)
{
    __u32 i, goes_on = 1;

#pragma clang loop unroll(disable)
    for (i = 0; i < size; i++) {
        __u32 byte = (__u8)text[i];

        goes_on &= (byte + 255) >> 8;
        asm volatile("" : "+r"(goes_on));
        match(by, states, byte & -goes_on);
    }
    match(by, states, '\n');
}

static __always_inline int may_be_observed(const struct function_event *function)
{
    int zero = 0;
    struct matcher *by = matcher.lookup(&zero);

    if (!by || !function->file[0] || !function->name[0])
        return 1; /* could not be read here */
    __u64 states[STATE_WORDS] = {by->first[0], by->first[1], by->first[2], by->first[3]};

    match_text(by, states, function->file, FILE_SIZE);
    match_text(by, states, function->name, NAME_SIZE);
    return !!((states[0] & by->last[0]) | (states[1] & by->last[1]) | (states[2] & by->last[2]) | (states[3] & by->last[3]));
}

#endif
