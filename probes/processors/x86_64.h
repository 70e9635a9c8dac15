/* x86-64. Python's side is pytrace_ebpf/processors/x86_64.py; tests/unit/processors/test_processors.py compares the two. */
#ifndef PYTRACE_X86_64_H
#define PYTRACE_X86_64_H

#define SYSCALL_CLONE 56
#define SYSCALL_VFORK 58
#define SYSCALL_FUTEX 202
#define SYSCALL_CLONE3 435

/* Of struct pt_regs as the kernel keeps it for a thread in a system call: its number, of which type that is, and its arguments. */
#define REGS_CALL orig_ax
#define REGS_CALL_TYPE __u64
#define REGS_FIRST di
#define REGS_SECOND si
#define REGS_THIRD dx
#define REGS_FOURTH r10
#define REGS_IP ip
#define REGS_SP sp
#define REGS_FP bp

/* Of what a uprobe's program is given, the words that a USDT argument may be in, counted from 1. */
#define OPERAND_REGISTERS(ONE) \
    ONE(1) ONE(2) ONE(3) ONE(4) ONE(5) ONE(6) ONE(7) ONE(8) ONE(9) ONE(10) ONE(11) ONE(12) ONE(13) ONE(14) ONE(15) ONE(17) ONE(20)

#define GIL_SIZE 208 /* struct _gil_runtime_state: two pthread_mutex_t are in it */

/* 0 where a pthread_t is that of the thread with this thread pointer. */
#define OF_ANOTHER_THREAD(pthread, thread_pointer) ((pthread) ^ (thread_pointer))

/* Columns of .eh_frame. The caller's return address is right below its stack. */
#define DWARF_SP 7
#define DWARF_FP 6
#define DWARF_RETURN 16
#define HAS_LINK_REGISTER 0

/* The first C library for this processor, whose versions of its functions the later ones have, too. */
#define OLDEST_GLIBC "GLIBC_2.2.5"
/* Where struct pthread has the kernel's id of the thread: glibc, musl. */
#define PTHREAD_TID 0x2d0
#define PTHREAD_TID_MUSL 0x30

/* So many words above where a function's frame begins are variables of its caller looked for. */
#define CALLERS_NEAR 32

/* Its own counter, which all cores share where the kernel keeps time by it. */
#define READ_COUNTER(into) ((into) = __builtin_ia32_rdtsc())

#endif
