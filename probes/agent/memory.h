/* Counts what the program's Python memory is: blocks that CPython's three allocators hand out and take back, by the calls that are open. */
#ifndef PYTRACE_MEMORY_H
#define PYTRACE_MEMORY_H

#include "arena.h"

/* GIL held. Where the options ask for it: have the allocators report to us, with no block known yet. Also of a forked child. */
void memory_start(void);
/* GIL held, while events may still be written: what was counted since the last event of each thread. */
void memory_flush(void);
/* GIL held. The allocators as they were; where somebody has put his own above ours, ours stay there and count nothing. */
void memory_stop(void);

#endif
