/* How a native function's caller is found, as rows that the compiled library makes of .eh_frame and samples.c searches. */
#ifndef PYTRACE_UNWIND_H
#define PYTRACE_UNWIND_H

#ifdef __KERNEL__
typedef __u32 unwind_u32;
typedef __s16 unwind_s16;
typedef __u8 unwind_u8;
#else
#include <stdint.h>
typedef uint32_t unwind_u32;
typedef int16_t unwind_s16;
typedef uint8_t unwind_u8;
#endif

/* The caller's stack pointer, which DWARF calls the CFA, by unwind_rule.kind; the return address lies below it. */
#define UNWIND_NONE 0   /* not known */
#define UNWIND_RSP 1    /* rsp + cfa; on aarch64 sp */
#define UNWIND_RBP 2    /* rbp + cfa; on aarch64 x29 */
#define UNWIND_DEREF 3  /* what is at rbp + cfa; the caller's rbp is at rbp */
#define UNWIND_PLT_11 4 /* rsp + 8, and 8 more from byte 11 of each 16 on */
#define UNWIND_PLT_10 5 /* the same, from byte 10 on */
#define UNWIND_END 6    /* there is no caller */
#define UNWIND_LINK 7   /* aarch64: as UNWIND_RSP, and the return address alone is saved, where `rbp` says */

struct unwind_rule {
    unwind_u32 pc;  /* from this address of the file on */
    unwind_s16 cfa; /* in units of 8 bytes */
    unwind_u8 rbp;  /* how far below the CFA the caller's rbp is, in units of 8 bytes; 0 = in rbp. On aarch64 how far above sp or x29 the caller's x29 is, and
                     * 1 more, with the return address right behind it; 0 = in x29, and that in x30 */
    unwind_u8 kind; /* UNWIND_* */
};

#endif
