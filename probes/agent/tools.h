/* A program gets each tool id of sys.monitoring that it would get without the agent: the agent gives way. */
#ifndef PYTRACE_TOOLS_H
#define PYTRACE_TOOLS_H

#include <stdbool.h>

/* The running interpreter's id that is the agent's; below 0: none. */
extern int (*tools_ours)(void);
/* The program is about to take that id: it is given back, and another one taken, or none. */
extern void (*tools_give_way)(void);

/* Main GIL held. From now on the program is told that the agent's id is free, and gets it; and no more. */
void tools_begin(void);
void tools_end(void);

#endif
