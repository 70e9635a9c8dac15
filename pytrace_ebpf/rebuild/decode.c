/* Decodes the records of an agent's chunk (probes/agent/agent.h) into columns of `events`, for the collector.
 *
 * The records are a copy of another user's memory: any bytes may be in them. What comes out lies within what the caller
 * says, or nothing does. */
#include "../../probes/agent/agent.h"
#include "engine.h"

#pragma GCC optimize("O3") /* as vectors what can be: three quarters of the time */

/* What stands for what in the records of one thread; library.py has the same. */
struct decoding {
    int64_t since;             /* stamp of a moment near them */
    int64_t from_ns;           /* that moment, CLOCK_MONOTONIC */
    double ns_per_stamp;
    int64_t first_ns, last_ns; /* no record is of another time: what is so far off lies at the end that is nearer */
    const int32_t *func_ids;   /* by the agent's number of the function */
    uint32_t functions;        /* so many, at least one; a number beyond stands for the last */
    bool lines;                /* lines were asked for: there may be such records */
};

/* Rows to write to, which have room. */
struct decoded {
    int64_t *ts;
    int8_t *kind;
    int32_t *func_id;
    int64_t *frame;
    int32_t *line;
};

/* False where a record is of a kind that no agent writes; what is in the rows then is of no use. */
OFFERED bool rebuild_decode(const struct event *events, size_t count, const struct decoding *by, const struct decoded *to, size_t row)
{
    /* Of a stamp only the low 48 bits are recorded: the difference to `since` is one with a sign of as many, here 65536 times as
     * large, which a double holds exactly. Clamped as one, since what is beyond an int64 may not be made an int64. */
    const double rate = by->ns_per_stamp / 65536;
    const double least = (double)(by->first_ns - by->from_ns), most = (double)(by->last_ns - by->from_ns);
    unsigned strange = 0;
    for (size_t i = 0, at = row; i < count; i++, at++) {
        const uint64_t stamp_line = events[i].stamp_line, what = events[i].what;
        const double ns = (double)(int64_t)((stamp_line - (uint64_t)by->since) << 16) * rate;
        to->ts[at] = by->from_ns + (int64_t)(ns < least ? least : ns > most ? most : ns);
        const unsigned kind = event_kind(what);
        strange |= (kind & 3) == EVENT_STANDS; /* or LINE */
        to->kind[at] = (int8_t)(kind == EVENT_STANDS ? STANDS : kind);
        const uint32_t function = event_function(what);
        to->func_id[at] = by->func_ids[function < by->functions ? function : by->functions - 1];
        to->frame[at] = event_frame(what);
        const int32_t line = (int32_t)event_line(stamp_line, what);
        to->line[at] = line - !line;
    }
    return !strange || by->lines;
}
