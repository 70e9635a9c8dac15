/* The agent has no thread of its own: threads of the program's do what it has to do, where Python lets them; where none runs Python, one that
 * lives for that alone. */
#ifndef PYTRACE_ERRANDS_H
#define PYTRACE_ERRANDS_H

#include <stdbool.h>

/* What is to be done, called with the main interpreter's GIL; here: on a thread of the program's. */
extern void (*errands_do)(bool here);
/* Has it done soon. On any thread that holds no lock, as one that waits in a system call and was made to call this. False: that cannot be. */
bool errands_ask(void);
/* Within a pending call of the interpreter's: it is done now. */
void errands_now(void);
/* Whether the calling thread is the one that lives for it alone. */
bool errands_on_own_thread(void);
/* Before a fork: no thread of the agent's is left that is about to end. */
void errands_before_fork(void);
/* In the child, where only the thread is that forked. */
void errands_after_fork(void);

#endif
