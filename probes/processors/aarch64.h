/* aarch64, little-endian. Python's side is pytrace_ebpf/processors/aarch64.py; tests/unit/processors/test_processors.py compares the two. */
#ifndef PYTRACE_AARCH64_H
#define PYTRACE_AARCH64_H

#define SYSCALL_CLONE 220
#define SYSCALL_VFORK (-2) /* there is none: it is a clone */
#define SYSCALL_FUTEX 98
#define SYSCALL_CLONE3 435

/* As in x86_64.h. The first argument: regs[0] is the result from some place on. */
#define REGS_CALL syscallno
#define REGS_CALL_TYPE __s32
#define REGS_FIRST orig_x0
#define REGS_SECOND regs[1]
#define REGS_THIRD regs[2]
#define REGS_FOURTH regs[3]
#define REGS_IP pc
#define REGS_SP sp
#define REGS_FP regs[29]

/* x0 to x30, sp */
#define OPERAND_REGISTERS(ONE) \
    ONE(1) ONE(2) ONE(3) ONE(4) ONE(5) ONE(6) ONE(7) ONE(8) ONE(9) ONE(10) ONE(11) ONE(12) ONE(13) ONE(14) ONE(15) ONE(16) ONE(17) ONE(18) ONE(19) \
    ONE(20) ONE(21) ONE(22) ONE(23) ONE(24) ONE(25) ONE(26) ONE(27) ONE(28) ONE(29) ONE(30) ONE(31) ONE(32)

#define GIL_SIZE 224

/* struct pthread ends where the thread pointer points; it has some 1,900 bytes (glibc 2.36), and the stack of the next thread is further away. */
#define OF_ANOTHER_THREAD(pthread, thread_pointer) ((thread_pointer) - (pthread) >> 12)

/* A call leaves the return address in x30; functions that call others save it, mostly behind the caller's x29. */
#define DWARF_SP 31
#define DWARF_FP 29
#define DWARF_RETURN 30
#define HAS_LINK_REGISTER 1
#define REGS_LINK regs[30]
/* Without the signature that it has with -mbranch-protection: what Linux gives to programs has 48 bits as long as they do not ask for more. */
#define RETURN_ADDRESS(signed) ((signed) & 0xffffffffffff)

#define OLDEST_GLIBC "GLIBC_2.17"
#define PTHREAD_TID 0xd0
#define PTHREAD_TID_MUSL 0x20

/* Here it begins below all that is the function's own. */
#define CALLERS_NEAR 128

/* The virtual counter, which all cores share and user space may read, as the vDSO's clock_gettime() does. Without the barrier the processor may read it before what stands
 * in front of it, and two reads of one thread in the wrong order (Arm Architecture Reference Manual, D11.2.2). */
#define READ_COUNTER(into) \
    do { \
        uint64_t counter_; \
        __asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(counter_) : : "memory"); \
        (into) = counter_; \
    } while (0)

#endif
