/* Greenlets of the program: see greenlets.c. All under the GIL. */
#ifndef PYTRACE_GREENLETS_H
#define PYTRACE_GREENLETS_H

/* A session begins; it ends. */
void greenlets_begin(void);
void greenlets_stop(void);
/* Something was imported: is it greenlet? */
void greenlets_look(void);

#endif
