/* Keeps for each thread of which interpreter it writes a call. */
#include "whose.h"

_Thread_local struct interpreter *interpreter_here __attribute__((tls_model("initial-exec")));
_Thread_local uint32_t owner_here __attribute__((tls_model("initial-exec")));
