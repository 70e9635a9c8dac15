/* Generators that run while the program's garbage is collected: see generators.c. */
#ifndef PYTRACE_GENERATORS_H
#define PYTRACE_GENERATORS_H

/* Under the GIL, before a thread has a profile function. */
void generators_protect(void);

#endif
