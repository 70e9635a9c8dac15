/* Waits in the run queue: for how long the thread's control group had no CPU quota left meanwhile, and who had the core.
 *
 * A group that has used up its quota is throttled: on each core the kernel adds up for how long that lasts, in the group's run queue of that core
 * (struct cfs_rq). What this has grown by while a thread waited in it is the thread's. Who leaves a core without being traced is reported while a
 * traced thread waits in its run queue.
 */
#define MOST_CORES 8192 /* NR_CPUS of distributions */

/* By core: how many traced threads wait for it. */
BPF_ARRAY(waiting, __u32, MOST_CORES);

BPF_RINGBUF_OUTPUT(external_switches, RING_PAGES);
LAYOUT(external_switch);

/* Of the thread that comes to this core, for how long it was throttled: kept here, since the verifier would follow all that comes after for each way to get it. */
BPF_PERCPU_ARRAY(throttled, __u64, 1);

#define KERNEL_U64(address) ({ __u64 taken = 0; bpf_probe_read_kernel(&taken, sizeof(taken), (void *)(address)); taken; })

/* Of a cfs_rq: since when it has been throttled, 0: it is not; and for how long it was before that. */
struct throttling {
    __u64 since, before;
};

static __always_inline struct throttling throttling_of(__u64 queue)
{
    struct throttling now = {};

    bpf_probe_read_kernel(&now, sizeof(now), (void *)(queue + SETTINGS->queue_throttling));
    if (SETTINGS->queue_throttled && now.since && !FIELD(queue, SETTINGS->queue_throttled))
        now.since = 0;
    return now;
}

/* For how long it has been throttled up to now. */
static __always_inline __u64 throttled_ns(__u64 queue, struct throttling now)
{
    __u64 core, ns = now.before;

    if (!now.since)
        return ns;
    core = KERNEL_U64(queue + SETTINGS->queue_core);
    ns += KERNEL_U64(core + SETTINGS->core_clock) - now.since;
    return SETTINGS->core_idle_ns ? ns - KERNEL_U64(core + SETTINGS->core_idle_ns) : ns;
}

static __always_inline void note_throttled(__u64 ns)
{
    int zero = 0;
    __u64 *now = throttled.lookup(&zero);

    if (now)
        *now = ns;
}

static __always_inline __u64 throttled_before(void)
{
    int zero = 0;
    __u64 *now = throttled.lookup(&zero);

    return now ? *now : 0;
}

static __always_inline void count_waiting(struct traced *traced, __s32 by)
{
    __u32 core = traced->core - 1, *count = waiting.lookup(&core);

    if (count && traced->counted)
        __sync_fetch_and_add(count, by);
}

/* `task` begins to wait for a core, in the run queue of `core`. While it is throttled it makes no difference who has the core. */
static __always_inline void queue_entered(struct traced *traced, __u64 task, __u32 core, __u64 ts)
{
    struct throttling now = {};

    traced->core = core + 1;
    if (SETTINGS->quota_known) {
        traced->queue = KERNEL_U64(task + SETTINGS->task_queue);
        now = throttling_of(traced->queue);
        traced->began = ts;
        traced->base = throttled_ns(traced->queue, now);
        traced->throttled = 0;
    }
    traced->counted = !now.since;
    count_waiting(traced, 1);
}

/* It waits no longer, if it did. Returns for how long its control group was throttled meanwhile; with `ts` 0: nothing. */
static __always_inline __u64 queue_left(struct traced *traced, __u64 ts)
{
    __u64 ns;

    if (!traced->core)
        return 0;
    count_waiting(traced, -1);
    traced->core = 0;
    if (!ts || !SETTINGS->quota_known)
        return 0;
    ns = traced->throttled + throttled_ns(traced->queue, throttling_of(traced->queue)) - traced->base;
    return ns < ts - traced->began ? ns : ts - traced->began;
}

/* It is moved to the run queue of `core`, and is still in the other one. */
static __always_inline void queue_moved(struct traced *traced, __u32 core)
{
    __u64 queues;

    if (!traced->core)
        return;
    count_waiting(traced, -1);
    traced->core = core + 1;
    count_waiting(traced, 1);
    if (!SETTINGS->quota_known)
        return;
    traced->throttled += throttled_ns(traced->queue, throttling_of(traced->queue)) - traced->base;
    queues = KERNEL_U64(KERNEL_U64(traced->queue + SETTINGS->queue_group) + SETTINGS->group_queues);
    traced->queue = KERNEL_U64(queues + core * sizeof(__u64));
    traced->base = throttled_ns(traced->queue, throttling_of(traced->queue));
}

/* The current thread, `tid`, which is not traced, leaves its core. */
static __always_inline void external_leaves(__u32 tid)
{
    __u32 core = bpf_get_smp_processor_id(), *count = waiting.lookup(&core);
    struct external_switch *event;

    if (!count || (__s32)*count <= 0)
        return;
    event = external_switches.ringbuf_reserve(sizeof(*event));
    if (!event) {
        count_loss(LOSS_EXTERNAL_RING);
        return;
    }
    event->ts = bpf_ktime_get_ns();
    event->pid = bpf_get_current_pid_tgid() >> 32;
    event->tid = tid;
    event->cpu = core;
    event->pad = 0;
    bpf_get_current_comm(event->name, sizeof(event->name));
    external_switches.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}
