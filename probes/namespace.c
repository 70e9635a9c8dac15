/* The threads of one pid namespace that ended: their ids in there, and on the host.
 *
 * Knobs: DEVICE, INODE (what stat says of /proc/PID/ns/pid), ENDED (so many are kept, the youngest).
 */
#include <uapi/linux/ptrace.h>
#include "common.h"

BPF_TABLE("lru_hash", __u32, __u32, ended, ENDED);

TRACEPOINT_PROBE(sched, sched_process_exit)
{
    struct bpf_pidns_info inside = {};
    __u32 tid = args->pid;

    if (!bpf_get_ns_current_pid_tgid(DEVICE, INODE, &inside, sizeof(inside)))
        ended.update(&inside.pid, &tid);
    return 0;
}
