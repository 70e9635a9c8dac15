/* A probe's argument, as its USDT note describes it: a register, or memory at an address in one. */
#ifndef PYTRACE_OPERANDS_H
#define PYTRACE_OPERANDS_H

#include <uapi/linux/ptrace.h>

#include "processor.h"

struct operand {
    __u8 number;    /* of the register: 1 + its index among the words of struct pt_regs; 0 = none */
    __u8 bytes;     /* in memory; 0 = it is the register's value */
    __u8 is_signed; /* in memory */
    __u8 pad;
    __s32 displacement;
};

/* In assembly, since clang would make one load of all these, from an address that it computes, which the verifier refuses. */
#define REGISTER(number)                                                                            \
    case number:                                                                                    \
        asm volatile("%0 = *(u64 *)(%1 + %2)" : "=r"(value) : "r"(ctx), "i"(8 * ((number) - 1)));   \
        break;

/* 0 = there is none. `operand` is one of SETTINGS, so only the load of its register is left of the switch. */
static __always_inline __u64 value_at(struct pt_regs *ctx, const struct operand *operand)
{
    __u64 value = 0, found = 0;

    switch (operand->number) {
        OPERAND_REGISTERS(REGISTER)
    }
    if (!operand->bytes)
        return value;
    if (operand->bytes <= sizeof(found))
        bpf_probe_read_user(&found, operand->bytes, (void *)(value + operand->displacement));
    found <<= 64 - 8 * operand->bytes;
    return operand->is_signed ? (__s64)found >> (64 - 8 * operand->bytes) : found >> (64 - 8 * operand->bytes);
}

#endif
