/* Threads of C: one computes without Python, one calls a Python function; each until the time is over. */
#include <pthread.h>
#include <time.h>

static double end;
static void (*called)(double);

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

__attribute__((noinline)) unsigned long computes(unsigned long x)
{
    for (int i = 0; i < 100000; i++)
        x = x * 6364136223846793005 + 1442695040888963407;
    return x;
}

static void *alone(void *arg)
{
    volatile unsigned long x = 1;
    while (now() < end)
        x = computes(x);
    return arg;
}

__attribute__((noinline)) void calls_back(void)
{
    called(end - now());
    __asm__ volatile(""); /* so that the call above is none to end with */
}

static void *with_python(void *arg)
{
    calls_back();
    return arg;
}

void both(double seconds, void (*callback)(double))
{
    pthread_t threads[2];
    end = now() + seconds;
    called = callback;
    pthread_create(&threads[0], 0, alone, 0);
    pthread_create(&threads[1], 0, with_python, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
}
