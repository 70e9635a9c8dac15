/* Sums of calls: one more call, and those of another engine. */
#include "sums.h"
#include "timeline.h"

void sums_add(struct sums *sums, int64_t wall, const int64_t part[PARTS], uint8_t known)
{
    sums->wall += wall;
    if (known & KNOWN_IN_PART) {
        sums->unknown_wall += wall;
        for (int k = 0; k < PARTS; k++) {
            sums->part[k] += part[k];
            sums->unknown_wall -= part[k];
        }
        return;
    }
    if (!(known & HAS_ON_CPU)) {
        sums->unknown++;
        sums->unknown_wall += wall;
        return;
    }
    if (LIKELY((known & OF_TIMES) == OF_TIMES)) {
        for (int k = 0; k < PARTS; k++)
            sums->part[k] += part[k];
        return;
    }
#define STATE(number, name, has) sums->part[number] += known & has ? part[number] : 0;
    STATES(STATE)
#undef STATE
    sums->unsplit_runq += !(known & HAS_RUNQ);
    sums->unsplit_waits += !(known & HAS_WAITS);
}

void sums_merge(struct sums *sums, const struct sums *more)
{
    sums->wall += more->wall;
    for (int part = 0; part < PARTS; part++)
        sums->part[part] += more->part[part];
    sums->unknown_wall += more->unknown_wall;
    sums->unknown += more->unknown;
    sums->unsplit_runq += more->unsplit_runq;
    sums->unsplit_waits += more->unsplit_waits;
}
