/* Counts in all lanes of wide vectors, which nothing but the kernel and the tracer could change meanwhile. */
#if defined(__aarch64__)
#include <sys/auxv.h>

#define HAS_SVE (1ul << 22) /* HWCAP_SVE */
#define MOST 32             /* lanes: of 256 bytes */

/* How many lanes are wrong. */
long count(long times)
{
    long lanes[MOST] = {0}, left = times, there = 2, wrong = 0;
    if (getauxval(AT_HWCAP) & HAS_SVE)
        __asm__ volatile(".arch_extension sve\n"
                         "ptrue p0.d\n"
                         "dup z0.d, #0\n"
                         "1: add z0.d, z0.d, #1\n"
                         "subs %0, %0, #1\n"
                         "b.ne 1b\n"
                         "st1d {z0.d}, p0, [%2]\n"
                         "cntd %1\n"
                         : "+r"(left), "+r"(there)
                         : "r"(lanes)
                         : "v0", "memory", "cc");
    else
        __asm__ volatile("movi v0.2d, #0\n"
                         "movi v1.2d, #0\n"
                         "cmeq v1.2d, v1.2d, v1.2d\n"
                         "1: sub v0.2d, v0.2d, v1.2d\n"
                         "subs %0, %0, #1\n"
                         "b.ne 1b\n"
                         "st1 {v0.2d}, [%1]\n"
                         : "+r"(left)
                         : "r"(lanes)
                         : "v0", "v1", "memory", "cc");
    for (long i = 0; i < there; i++)
        wrong += lanes[i] != times;
    return wrong;
}
#else
typedef long long four __attribute__((vector_size(32)));

/* How many lanes are wrong. By AVX2, which each machine has that this runs on. */
__attribute__((target("avx2"))) long count(long times)
{
    four lanes = {0}, one = {1, 1, 1, 1};
    long wrong = 0;
    for (long i = 0; i < times; i++) {
        lanes += one;
        __asm__ volatile("" : "+x"(lanes));
    }
    for (int i = 0; i < 4; i++)
        wrong += lanes[i] != times;
    return wrong;
}
#endif
