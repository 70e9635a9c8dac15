/* What the C knows of this processor: one of probes/processors/. bcc, which compiles for BPF, names it by PROCESSOR_ and what `uname -m` says. */
#ifndef PYTRACE_PROCESSOR_H
#define PYTRACE_PROCESSOR_H

#if defined(PROCESSOR_aarch64) || (!defined(PROCESSOR_x86_64) && defined(__aarch64__))
#include "processors/aarch64.h"
#else
#include "processors/x86_64.h"
#endif

#endif
