/* The threads of one pid namespace that ended: their ids in there, and on the host.
 */
#include <uapi/linux/ptrace.h>
#include "common.h"

/* Of the namespace, what stat says of /proc/PID/ns/pid. */
struct settings {
    __u64 device;
    __u64 inode;
};
LAYOUT(settings);

/* The youngest of them. */
BPF_TABLE("lru_hash", __u32, __u32, ended, 16384);

TRACEPOINT(sched_process_exit)
{
    struct bpf_pidns_info inside = {};
    __u32 tid = bpf_get_current_pid_tgid();

    if (!bpf_get_ns_current_pid_tgid(SETTINGS->device, SETTINGS->inode, &inside, sizeof(inside)))
        ended.update(&inside.pid, &tid);
    return 0;
}
