/* Memory of the agent's own. Not malloc's: that may be the program's, with events of its own. */
#ifndef PYTRACE_PAGES_H
#define PYTRACE_PAGES_H

#include <stddef.h>
#include <sys/mman.h>

/* Whole pages of zeros, for munmap(); NULL where there is no memory. */
static inline void *pages(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

#endif
