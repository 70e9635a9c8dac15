/* Sums of calls. */
#ifndef PYTRACE_SUMS_H
#define PYTRACE_SUMS_H

#include "common.h"

/* `unknown`, `unsplit_...`: calls of which the scheduling, or only how the time off a core splits into these waits, is not known. */
struct sums {
    int64_t wall, part[PARTS], unknown_wall, unknown, unsplit_runq, unsplit_waits;
};

void sums_merge(struct sums *sums, const struct sums *more);
void sums_add(struct sums *sums, int64_t wall, const int64_t part[PARTS], uint8_t known);

#endif
