/* Python stacks of the threads that have a core, at equal intervals, and of those that come back to one.
 *
 * Each core's clock interrupts whatever runs there. If that is a thread of a sampled process, its frames are read from the
 * interpreter's own structures. A thread that was off the core for a time t is sampled when it comes back, before it has run a
 * single instruction, with the probability min(1, t / period): its stack is what it was all the while. The sample then stands for
 * max(t, period), so sums are unbiased; every long interval counts exactly, and short ones cost one sample a period at most. Where nobody
 * records scheduling beside, such an interval is two: until the thread was woken, and then in the run queue, which the kernel measures itself
 * (struct sched_info). The chance of each is that of its own length, and its sample says what the thread was in; both have the same stack. They have
 * a longer period there: of many threads all but one or two are off the core, nearly always, and to read a stack is what costs. A moment of
 * that period is drawn at the switch: of an interval that does not reach back to it nothing more is asked.
 * The thread is stopped meanwhile, but possibly in the middle of an update: frames that are not
 * consistent make a torn sample, which is counted. A stack's frames are reported once; later samples refer to them by a hash.
 *
 * The native frames follow, of a thread that runs no Python alone: from its registers by the rules of the files that are mapped where it is,
 * which user space has made of their .eh_frame (unwind.h). Nothing here relies on what those say: they lead to addresses that are read
 * as the thread itself could, or not. A frame is reported as the row that it was found by, so that a function has few of them.
 */
#include "common.h"
#include "off_cpu.h"
#include "frames.h"
#include "shares.h"
#define MAY_NAME(user, ring, size) may_take(user, OF_##ring, (OF_##ring == OF_PATHS ? SETTINGS->paths_room : SETTINGS->resources_room), 1, size)
#include "descriptors.h"
#include "tasks.h"
#include "unwind.h"

BPF_RINGBUF_OUTPUT(samples, RING_PAGES);
LAYOUT(sample_event);
BPF_RINGBUF_OUTPUT(stacks, RING_PAGES);
LAYOUT(stack_event);
BPF_RINGBUF_OUTPUT(tasks, RING_PAGES);
LAYOUT(task_event);

/* Offsets in the structures of one version of CPython, named as in record/cpython/layout.py. */
struct sample_layout {
    struct frame_layout frames;
    struct task_layout tasks;
    __s32 frame_size; /* bytes of a frame to read: all fields used here lie within them */
    __s32 frame_running;
    __u32 running_values;
    __s32 interpreter_threads;
    __s32 thread_next;
    __s32 thread_pthread;
    __s32 thread_frame;
    __s32 thread_datastack;
    __s32 cframe_frame;
    __s32 code_file;
    __s32 code_name;
    __s32 code_bytes;
    __s32 position_unit;  /* bytes */
    __s32 ends_with_shim; /* 1 = the outermost frame of a stack is an entry from C */
    __s32 string_hash;
    __s32 frame_entered; /* a byte: whether the interpreter's C function was entered for the frame */
    __s32 interpreter_next;
    __s32 interpreter_gil;
    __s32 thread_interpreter;
    /* 0 where interpreters beside the main one are not looked into; no ABSENT: the verifier would follow `search` once more for what is chosen by it */
    __s32 thread_status;
    __u32 last_used; /* the bit of it */
    __s32 newest;    /* so much before the pointer to the main interpreter is that to the newest one */
};
#define LAYOUTS 64
BPF_ARRAY(layouts, struct sample_layout, LAYOUTS);

/* What is mapped at some addresses of a process. */
struct span {
    __u64 start;
    __u64 end;
    __u64 bias; /* from addresses of the file */
    __u32 file; /* its number; 0 = its rules are not known */
    __u32 pad;
};
#define MOST_SPANS 4096
#define MOST_RULES (1 << 23)
#define MOST_FILES 4096

/* Maps of maps: user space makes one map more for each program, and for each file, sorted. `spans_one`, `rules_one` are what they are like. */
BPF_F_TABLE("array", __u32, struct span, spans_one, 1, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
BPF_HASH_OF_MAPS(spans, __u32, "spans_one", 16384); /* by struct sampled's number */
BPF_F_TABLE("array", __u32, struct unwind_rule, rules_one, 1, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
BPF_ARRAY_OF_MAPS(rules, "rules_one", MOST_FILES); /* by the file's number */

/* The rules last used on this core: a program calls from few places again and again, and to search takes most of a walk. They hold for what
 * user space had described by then, which has a number. */
struct route {
    __u64 place;
    __u32 program;
    __u32 described;
    __u32 file;
    struct unwind_rule rule;
};
#define ROUTES 1024
BPF_PERCPU_ARRAY(routes, struct route, 2 * ROUTES); /* of TICK, and of BACK: by address */
#define RECENT 256
BPF_PERCPU_ARRAY(recent, struct route, 2 * RECENT); /* by where on the stack the frame was: a walk goes through this from one end to the other, as caches like it */
BPF_ARRAY(described, __u32, 1);

/* Process ids of which an instruction lies where user space knows nothing to be mapped -> its address. */
BPF_TABLE("lru_hash", __u32, __u64, strays, 1024);

/* thread id -> its thread state */
struct state {
    __u64 address; /* 0 = none */
    __u64 other;   /* the one before it: threads go back and forth between interpreters */
    __u64 again;   /* when the list of thread states may next be searched for it */
    __u64 wait;    /* ns between two searches; doubles each time: a new thread has no state yet, one of a BLAS's pool never gets one */
    __u64 interpreter; /* the one to search then; 0 = the first */
};
BPF_TABLE("lru_hash", __u32, struct state, states, 65536);
#define FIRST_WAIT_NS 10000000ULL
#define LAST_WAIT_NS 5000000000ULL
#define STATES_A_LOOK 2048

/* Stacks whose frames have been reported. */
BPF_TABLE("lru_hash", __u64, __u8, known, 65536);

/* Tasks whose names have been reported. */
BPF_TABLE("lru_hash", __u64, __u8, named, 16384);

/* When this core's clock is to tick next, 0 = not known. */
BPF_PERCPU_ARRAY(due, __u64, 1);

BPF_PERCPU_ARRAY(spent, __u64, 1); /* ns spent in these programs */

/* The walks on this core. */
#define HEAD 128 /* bytes of a frame, and of a code object, to read: all fields used here lie within them */
struct walk {
    __u64 began;
    struct off off;
    __u64 pid_tgid;
    __u32 missed;
    __u64 frame; /* the next one to read */
    __u64 hash;
    __u64 code_type;
    __u32 program;
    __u32 layout;
    __u32 user;
    __u32 count;
    __u16 opcode;
    __u8 outermost; /* the last frame read may be the outermost one of a stack */
    __u8 outcome;
    __u64 ip; /* of the next native frame */
    __u64 sp;
    __u64 fp;
    __u64 link; /* where the return address of the innermost function may be */
    struct span span; /* the one last used */
    struct running running;
    __u64 tasks;  /* where these are found: the dict */
    __u64 thread; /* and the thread's state; 0 = they were looked for */
    struct task_event task;
    __u32 described;
    __u32 natives;
    __u32 native; /* NATIVE_* */
    char head[HEAD + 8];
    char code[HEAD + 8];
    struct sample_frame frames[SAMPLE_FRAMES + NATIVE_FRAMES + STACK_CHUNK];
};
BPF_PERCPU_ARRAY(walks, struct walk, 2);
#define TICK 0
#define BACK 1 /* which a tick may interrupt */

BPF_PROG_ARRAY(steps, 3);
BPF_PROG_ARRAY(steps_back, 3); /* the programs of an array have one type */
#define STEP 0
#define FINISH 1
#define NATIVE 2
#define NO_STEP 3
#define FRAMES_A_STEP 64 /* the kernel allows 33 tail calls in a row */
#define NATIVES_A_STEP 16

/* walk.outcome */
#define MORE 0
#define WHOLE 1
#define TORN 2
#define DEEP 3
#define NATIVE_MORE 4 /* of native frames, beside NATIVE_* */

#define FIELD_OF(type, head, offset) (*(type *)((head) + ((offset) & (HEAD - 1))))
#define OWNED_BY_OBJECT 2
#define BYTES_OF_BYTES 32 /* offset of the contents in a bytes object */

/* 0 where a thread state is that of the thread with this pthread_t: of those that it has in several interpreters the one last used. */
static __always_inline __u64 is_other(const struct sample_layout *layout, __u64 state, __u64 pthread)
{
    return OF_ANOTHER_THREAD(TAKE(__u64, state + layout->thread_pthread), pthread) | (layout->last_used & ~TAKE(__u32, state + layout->thread_status));
}

/* Looks for the current thread's state in one interpreter's list, at the next sample in the next one's. */
static __always_inline void search(const struct sampled *process, const struct sample_layout *layout, struct state *found, __u64 pthread, __u64 now)
{
    __u64 interpreter = found->interpreter ? found->interpreter : TAKE(__u64, process->main - layout->newest), state;
    int i;

    state = interpreter ? TAKE(__u64, interpreter + layout->interpreter_threads) : 0;
    for (i = 0; i < STATES_A_LOOK && state; i++) {
        if (!is_other(layout, state, pthread))
            break;
        state = TAKE(__u64, state + layout->thread_next);
    }
    found->other = found->address;
    found->address = i < STATES_A_LOOK ? state : 0;
    found->interpreter = found->address || !layout->last_used ? 0 : TAKE(__u64, interpreter + layout->interpreter_next);
    if (found->interpreter)
        return;
    found->wait = found->address ? 0 : found->wait ? 2 * found->wait : FIRST_WAIT_NS;
    if (found->wait > LAST_WAIT_NS)
        found->wait = LAST_WAIT_NS;
    found->again = now + found->wait;
}

/* The current thread's thread state; 0 = none. */
static __always_inline __u64 thread_state(const struct sampled *process, const struct sample_layout *layout, __u32 tid, __u64 now)
{
    __u64 pthread = 0, state = process->holder ? TAKE(__u64, process->holder) : 0;
    struct state *before, found = {};

    bpf_probe_read_kernel(&pthread, sizeof(pthread), (void *)bpf_get_current_task() + SETTINGS->thread_pointer);
    before = states.lookup(&tid);
    if (before)
        found = *before;
    if (state && !is_other(layout, state, pthread)) {
        if (found.address == state)
            return state;
        found.other = found.address;
        found.address = state;
        found.again = found.wait = found.interpreter = 0;
    } else if (found.address && !is_other(layout, found.address, pthread)) {
        return found.address;
    } else if (layout->last_used && found.other && !is_other(layout, found.other, pthread)) {
        state = found.other;
        found.other = found.address;
        found.address = state;
    } else if (now < found.again) {
        return 0;
    } else {
        search(process, layout, &found, pthread, now);
    }
    states.update(&tid, &found);
    return found.address;
}

/* Whether the current thread waits for the GIL of the interpreter that it runs: others than the main one may have one of their own. */
static __always_inline int waits_for_own(const struct sampled *process, const struct sample_layout *layout, __u64 state, struct pt_regs *regs)
{
    __u64 address = KERNEL(__u64, &regs->REGS_FIRST), gil;

    if (!state || layout->thread_interpreter == ABSENT || KERNEL(REGS_CALL_TYPE, &regs->REGS_CALL) != SYSCALL_FUTEX)
        return 0;
    gil = TAKE(__u64, TAKE(__u64, state + layout->thread_interpreter) + layout->interpreter_gil);
    return gil && address - gil < process->gil_end - process->gil_start;
}

/* Whether the frame has been left already: it lies in the unused part of the thread's data stack. */
static __always_inline int is_left(const struct sample_layout *layout, __u64 state, __u64 frame)
{
    __u64 ends[3] = {}; /* of the chunk: begin, end of the part in use, end */

    if (layout->thread_datastack == ABSENT || bpf_probe_read_user(ends, sizeof(ends), (void *)(state + layout->thread_datastack)))
        return 0;
    return frame >= ends[0] && frame < ends[2] && frame >= ends[1];
}

/* Begins a sample of the current thread; returns the step to go on with. */
static __always_inline int begin(int which, struct sampled *process, __u64 began, const struct off *off, __u32 missed)
{
    __u64 pid_tgid = bpf_get_current_pid_tgid(), state;
    struct sample_layout *layout;
    struct walk *walk;
    int number = process->layout;
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

    layout = layouts.lookup(&number);
    walk = walks.lookup(&which);
    if (!layout || !walk)
        return NO_STEP;
    walk->ip = KERNEL(__u64, &regs->REGS_IP);
    walk->sp = KERNEL(__u64, &regs->REGS_SP);
    walk->fp = KERNEL(__u64, &regs->REGS_FP);
#if HAS_LINK_REGISTER
    walk->link = KERNEL(__u64, &regs->REGS_LINK);
#endif
    walk->span.start = walk->span.end = 0;
    walk->natives = 0;
    walk->native = NATIVE_NONE;
    walk->began = began;
    walk->off = *off;
    asm volatile("" ::: "memory"); /* of what it was that led here nothing is kept beside: the verifier follows the search below once */
    state = thread_state(process, layout, pid_tgid, began);
    if (walk->off.state == SAMPLE_IN_BLOCKED && waits_for_own(process, layout, state, regs))
        walk->off.state = SAMPLE_IN_GIL;
    walk->missed = missed;
    walk->pid_tgid = pid_tgid;
    walk->hash = mixed(MIX, process->number);
    walk->code_type = process->code_type;
    walk->program = process->number;
    walk->layout = number;
    walk->user = process->user;
    walk->count = 0;
    walk->opcode = OPCODE_UNKNOWN;
    walk->outermost = 1;
    walk->outcome = WHOLE;
    walk->running.count = 0;
    walk->running.met = 0;
    walk->tasks = process->tasks;
    walk->thread = state;
    walk->frame = state ? TAKE(__u64, state + layout->thread_frame) : 0;
    if (walk->frame && layout->cframe_frame != ABSENT)
        walk->frame = TAKE(__u64, walk->frame + layout->cframe_frame);
    if (!walk->frame)
        return NATIVE;
    if (is_left(layout, state, walk->frame)) {
        walk->outcome = TORN;
        return FINISH;
    }
    walk->outcome = MORE;
    return STEP;
}

/* How many ticks of this core did not come before the one at `now`, while the current thread had it: nothing ran here meanwhile (of a virtual machine, the host had other work
 * for the core), or its interrupts were off for so long. One that comes sooner than it was due says that those before it came late. */
static __always_inline __u32 missed_ticks(__u64 now)
{
    int zero = 0;
    __u64 *known = due.lookup(&zero), late, held;
    __u32 cpu = bpf_get_smp_processor_id();
    struct coming *coming = comings.lookup(&cpu);

    if (!known || !coming)
        return 0;
    late = *known && now > *known ? (now - *known) / SETTINGS->period : 0;
    *known = (*known && now > *known ? *known + late * SETTINGS->period : now) + SETTINGS->period;
    held = (now - coming->given) / SETTINGS->period; /* an idle core of a virtual machine may not tick for as long as it is idle */
    return late < held ? late : held;
}

struct bpf_perf_event_data; /* whose header, with what it includes, is not clang's C from Linux 7 on */

int sample(struct bpf_perf_event_data *ctx)
{
    __u32 pid = bpf_get_current_pid_tgid() >> 32, missed;
    struct sampled *process = processes.lookup(&pid);
    __u64 now = bpf_ktime_get_ns();

    missed = missed_ticks(now);
    if (process) {
        struct off none = {.state = SETTINGS->states ? SAMPLE_ON_CORE : SAMPLE_IN_UNKNOWN};
        int next = begin(TICK, process, now, &none, missed);

        steps.call(ctx, next);
        if (next == NATIVE) /* which the kernel may have refused */
            steps.call(ctx, FINISH);
    }
    return 0;
}

/* Where a thread gets a core, in its own context, before it goes on: record/sampling/clocks.py. */
int back(struct bpf_raw_tracepoint_args *ctx)
{
    int cpu = bpf_get_smp_processor_id(), chosen;
    struct coming *coming = comings.lookup(&cpu);
    struct sampled *process;
    struct off off = {};
    __u32 pid;

    if (!coming || !coming->at)
        return 0;
    pid = bpf_get_current_pid_tgid() >> 32;
    process = processes.lookup(&pid);
    chosen = process && sampled_of(&off, process, coming);
    coming->at = 0;
    if (chosen) {
        int next = begin(BACK, process, bpf_ktime_get_ns(), &off, 0);

        steps_back.call(ctx, next);
        if (next == NATIVE)
            steps_back.call(ctx, FINISH);
    }
    return 0;
}

/* Identifies the code object just read among those that have been at its address. Addresses of strings are reused along with
 * that of the code object, so the name enters by its hash, which CPython has computed for every name of a code object. */
static __always_inline __u32 identity(struct walk *walk, const struct sample_layout *layout)
{
    __u64 name = TAKE(__u64, FIELD_OF(__u64, walk->code, layout->code_name) + layout->string_hash);
    __u64 mix = mixed(mixed(MIX, FIELD_OF(__u64, walk->code, layout->code_file)), name);

    return mixed(mixed(mix, FIELD_OF(__u32, walk->code, layout->frames.code_first_line)), *(__u64 *)(walk->code + 16));
}

/* Reads the next frame. */
static __always_inline int take_frame(struct walk *walk, const struct sample_layout *layout)
{
    const struct frame_layout *frames = &layout->frames;
    __u32 size = layout->frame_size & (2 * HEAD - 1), at = walk->count;
    __u64 code, position, next;
    struct sample_frame *taken;

    if (size > HEAD || bpf_probe_read_user(walk->head, size, (void *)walk->frame))
        return TORN;
    meet(&walk->running, walk->frame);
    next = FIELD_OF(__u64, walk->head, frames->frame_previous);
    if (frames->frame_owner != ABSENT) {
        __u8 owner = FIELD_OF(__u8, walk->head, frames->frame_owner);

        walk->outermost = layout->ends_with_shim ? owner >= frames->owner_shim : owner != OWNED_BY_GENERATOR;
        if (owner == OWNED_BY_OBJECT)
            return TORN; /* it is no longer on a stack */
        if (owner >= frames->owner_shim) {
            if (at)
                walk->frames[(at - 1) & (SAMPLE_FRAMES - 1)].code |= FRAME_ENTERED;
            walk->hash = mixed(walk->hash, FRAME_ENTERED);
            walk->frame = next;
            return MORE;
        }
    }
    if (at && layout->frame_running != ABSENT && !(layout->running_values >> (FIELD_OF(__u8, walk->head, layout->frame_running) & 31) & 1))
        return TORN;
    code = FIELD_OF(__u64, walk->head, frames->frame_code) & ~3ULL;
    if (bpf_probe_read_user(walk->code, HEAD, (void *)code))
        return TORN;
    if (walk->code_type && *(__u64 *)(walk->code + 8) != walk->code_type)
        return TORN;
    position = FIELD_OF(__u64, walk->head, frames->frame_position);
    if (frames->code_start != ABSENT) {
        position -= code + frames->code_start;
        if ((__s64)position < -2 || (__s64)position >= 2 * *(__s64 *)(walk->code + 16))
            return TORN;
    } else {
        position = (__s32)position;
    }
    if (at >= SAMPLE_FRAMES)
        return DEEP;
    taken = &walk->frames[at & (SAMPLE_FRAMES - 1)];
    taken->code = code;
    if (layout->frame_entered != ABSENT && FIELD_OF(__u8, walk->head, layout->frame_entered))
        taken->code |= FRAME_ENTERED;
    taken->position = position;
    taken->identity = identity(walk, layout);
    if (!at && (__s64)position >= 0) {
        __u64 instruction = code + frames->code_start + position;
        __u8 opcode;

        if (layout->code_bytes != ABSENT)
            instruction = FIELD_OF(__u64, walk->code, layout->code_bytes) + BYTES_OF_BYTES + position * layout->position_unit;
        if (!bpf_probe_read_user(&opcode, sizeof(opcode), (void *)instruction))
            walk->opcode = opcode;
    }
    walk->hash = mixed(mixed(walk->hash, code), (__u64)taken->identity << 32 | (__u32)position);
    walk->count = at + 1;
    walk->frame = next;
    return MORE;
}

/* Reads some frames; returns the step to go on with. */
static __always_inline int walk_on(int which)
{
    int i, number, now = MORE;
    struct walk *walk = walks.lookup(&which);
    struct sample_layout *layout;

    if (!walk)
        return NO_STEP;
    number = walk->layout;
    layout = layouts.lookup(&number);
    if (!layout)
        return NO_STEP;
    if (walk->thread) { /* the first of these steps: before, the verifier would follow the search anew for each way that led there */
        find_running(&walk->running, &layout->tasks, walk->tasks, walk->thread);
        walk->thread = 0;
    }
    for (i = 0; i < FRAMES_A_STEP; i++) {
        if (!walk->frame) {
            now = walk->outermost ? WHOLE : TORN;
            break;
        }
        now = take_frame(walk, layout);
        if (now != MORE)
            break;
    }
    walk->outcome = now == MORE ? DEEP : now; /* stays so where the kernel allows no further step */
    return now == MORE ? STEP : now == TORN || !walk->count ? FINISH : NATIVE;
}

/* Finds what is mapped at an address of the process; 0 = nothing that is known. A search by halves; that the first place is no constant
 * keeps the verifier from following each of them apart. */
static __always_inline int find_span(struct walk *walk, void *of_process, __u64 address)
{
    __u32 at = walk->span.pad, step, next;
    struct span *span;

    if (address >= walk->span.start && address < walk->span.end)
        return 1;
    for (step = MOST_SPANS / 2; step; step /= 2) {
        next = at + step;
        span = bpf_map_lookup_elem(of_process, &next);
        if (span && span->start <= address)
            at = next;
    }
    span = bpf_map_lookup_elem(of_process, &at);
    if (!span || address < span->start || address >= span->end)
        return 0;
    walk->span = *span;
    return 1;
}

/* Finds the rule for an address of the process; returns how the walk ends if there is none. */
static __always_inline int find_rule(struct walk *walk, void *of_process, __u64 place, struct route *found)
{
    __u32 zero = walk->span.pad, row = zero, step, next, pc;
    struct unwind_rule *rule;
    void *of_file;

    if (!find_span(walk, of_process, place)) {
        __u32 pid = walk->pid_tgid >> 32;

        strays.update(&pid, &place);
        return NATIVE_BROKEN;
    }
    of_file = rules.lookup(&walk->span.file);
    if (!walk->span.file || !of_file)
        return NATIVE_BROKEN;
    pc = place - walk->span.bias;
    for (step = MOST_RULES / 2; step; step /= 2) {
        next = row + step;
        rule = bpf_map_lookup_elem(of_file, &next);
        if (rule && rule->pc <= pc)
            row = next;
    }
    rule = bpf_map_lookup_elem(of_file, &row);
    if (!rule || rule->pc > pc)
        return NATIVE_BROKEN;
    found->place = place;
    found->program = walk->program;
    found->described = walk->described;
    found->file = walk->span.file;
    found->rule = *rule;
    return NATIVE_MORE;
}

static __always_inline int holds(const struct route *route, const struct walk *walk, __u64 place)
{
    return route->place == place && route->program == walk->program && route->described == walk->described;
}

#if HAS_LINK_REGISTER
/* The caller's stack pointer and the address that it goes on at, of the function that has been taken last; 0 = they are not known. */
static __always_inline int find_caller(struct walk *walk, const struct unwind_rule *rule, __u64 place, __u64 *cfa, __u64 *above)
{
    __u64 from = rule->kind == UNWIND_RBP ? walk->fp : walk->sp, saved = from + 8 * (__u64)rule->rbp - 8;
    int innermost = walk->natives == 1;

    if (rule->kind != UNWIND_RSP && rule->kind != UNWIND_RBP && rule->kind != UNWIND_LINK)
        return 0;
    *cfa = from + 8 * (__s64)rule->cfa;
    if (!rule->rbp)
        *above = innermost ? walk->link : 0;
    else
        *above = TAKE(__u64, rule->kind == UNWIND_LINK ? saved : saved + 8);
    *above = RETURN_ADDRESS(*above);
    if (!*above || *cfa < walk->sp || (*cfa == walk->sp && !innermost))
        return 0;
    if (rule->rbp && rule->kind != UNWIND_LINK)
        walk->fp = TAKE(__u64, saved);
    return 1;
}
#else
static __always_inline int find_caller(struct walk *walk, const struct unwind_rule *rule, __u64 place, __u64 *caller, __u64 *return_address)
{
    __u64 cfa, above;

    cfa = 8 * (__s64)rule->cfa;
    if (rule->kind == UNWIND_RSP)
        cfa += walk->sp;
    else if (rule->kind == UNWIND_RBP)
        cfa += walk->fp;
    else if (rule->kind == UNWIND_DEREF)
        cfa = TAKE(__u64, walk->fp + cfa);
    else if (rule->kind == UNWIND_PLT_11 || rule->kind == UNWIND_PLT_10)
        cfa = walk->sp + 8 + 8 * ((place & 15) >= (rule->kind == UNWIND_PLT_11 ? 11 : 10));
    else
        return 0;
    above = TAKE(__u64, cfa - 8);
    if (!above || cfa <= walk->sp)
        return 0;
    if (rule->kind == UNWIND_DEREF)
        walk->fp = TAKE(__u64, walk->fp);
    else if (rule->rbp)
        walk->fp = TAKE(__u64, cfa - 8 * (__u64)rule->rbp);
    *caller = cfa;
    *return_address = above;
    return 1;
}
#endif

/* Takes the next native frame, and finds its caller. */
static __always_inline int take_native(struct walk *walk, void *of_process, int which)
{
    __u64 place = walk->ip - !!walk->natives, cfa, above, at = walk->count + walk->natives; /* a return address may be another function's */
    __u32 slot = which * ROUTES + (mixed(MIX, place) & (ROUTES - 1)), spot = which * RECENT + (walk->sp / 32 & (RECENT - 1));
    struct route *route = recent.lookup(&spot), *known;
    struct unwind_rule *rule;
    struct sample_frame *taken;

    if (walk->natives >= NATIVE_FRAMES)
        return NATIVE_CUT;
    if (!route)
        return NATIVE_BROKEN;
    if (!holds(route, walk, place)) {
        known = routes.lookup(&slot);
        if (!known)
            return NATIVE_BROKEN;
        if (!holds(known, walk, place)) {
            int now = find_rule(walk, of_process, place, known);

            if (now != NATIVE_MORE)
                return now;
        }
        *route = *known;
    }
    rule = &route->rule;
    if (at >= SAMPLE_FRAMES + NATIVE_FRAMES)
        return NATIVE_BROKEN;
    if (rule->kind != UNWIND_NONE) {
        taken = &walk->frames[at];
        taken->code = FRAME_NATIVE | (__u64)route->file << 32 | rule->pc;
        taken->identity = 0;
        taken->position = 0;
        walk->hash = mixed(walk->hash, taken->code);
        walk->natives++;
    }
    if (rule->kind == UNWIND_END)
        return NATIVE_WHOLE;
    if (!find_caller(walk, rule, place, &cfa, &above))
        return NATIVE_BROKEN;
    walk->sp = cfa;
    walk->ip = above;
    return NATIVE_MORE;
}

/* Takes some native frames; returns the step to go on with. */
static __always_inline int natives_on(int which)
{
    int i, now = NATIVE_MORE, zero = 0;
    struct walk *walk = walks.lookup(&which);
    __u32 *known;
    void *of_process;

    if (!walk)
        return NO_STEP;
    known = described.lookup(&zero);
    walk->described = known ? *known : 0;
    of_process = spans.lookup(&walk->program);
    if (!of_process) {
        __u32 pid = walk->pid_tgid >> 32;

        strays.update(&pid, &walk->ip);
        walk->native = NATIVE_BROKEN;
        return FINISH;
    }
    for (i = 0; i < NATIVES_A_STEP; i++) {
        now = take_native(walk, of_process, which);
        if (now != NATIVE_MORE)
            break;
    }
    walk->native = now == NATIVE_MORE ? NATIVE_CUT : now;
    return now == NATIVE_MORE ? NATIVE : FINISH;
}

int natives(struct bpf_perf_event_data *ctx)
{
    steps.call(ctx, natives_on(TICK));
    steps.call(ctx, FINISH);
    return 0;
}

int natives_back(struct bpf_raw_tracepoint_args *ctx)
{
    steps_back.call(ctx, natives_on(BACK));
    steps_back.call(ctx, FINISH);
    return 0;
}

int step(struct bpf_perf_event_data *ctx)
{
    steps.call(ctx, walk_on(TICK));
    steps.call(ctx, FINISH);
    return 0;
}

int step_back(struct bpf_raw_tracepoint_args *ctx)
{
    steps_back.call(ctx, walk_on(BACK));
    steps_back.call(ctx, FINISH);
    return 0;
}

/* Reports the frames of a stack to user space; 0 = the ring is full, or the user's share of it. */
static __always_inline int report(struct walk *walk)
{
    __u32 count = walk->count + walk->natives, i;

    if (!may_take(walk->user, OF_STACKS, SETTINGS->stacks_room, (count + STACK_CHUNK - 1) / STACK_CHUNK, sizeof(struct stack_event)))
        return 0;
    for (i = 0; i < (SAMPLE_FRAMES + NATIVE_FRAMES) / STACK_CHUNK; i++) {
        struct stack_event *event;

        if (i * STACK_CHUNK >= count)
            break;
        event = stacks.ringbuf_reserve(sizeof(*event));
        if (!event)
            return 0;
        event->stack = walk->hash;
        event->program = walk->program;
        event->first = i * STACK_CHUNK;
        event->count = count - i * STACK_CHUNK < STACK_CHUNK ? count - i * STACK_CHUNK : STACK_CHUNK;
        event->total = count;
        event->deep = walk->outcome == DEEP;
        event->native = walk->native;
        bpf_probe_read_kernel(event->frames, sizeof(event->frames), &walk->frames[i * STACK_CHUNK]);
        stacks.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    }
    return 1;
}

/* The name of the task that ran; reports it to user space where it is new. */
static __always_inline __u64 task_of(struct walk *walk)
{
    int number = walk->layout;
    struct sample_layout *layout = layouts.lookup(&number);
    __u8 one = 1;

    if (!walk->running.met || !layout || take_name(&walk->task, &layout->tasks, walk->running.met))
        return 0;
    if (!named.lookup(&walk->task.task)) {
        if (!may_take(walk->user, OF_TASKS, SETTINGS->tasks_room, 1, sizeof(walk->task)) || tasks.ringbuf_output(&walk->task, sizeof(walk->task), BPF_RB_NO_WAKEUP))
            count_loss(LOSS_SAMPLE_RING);
        else
            named.update(&walk->task.task, &one);
    }
    return walk->task.task;
}

/* Which system call the current thread is in, which was blocked and has a core again, and what it waited for there. */
struct wait {
    __s64 syscall; /* -1: none, as of a page fault; SYSCALL_UNKNOWN */
    __u64 resource;
};

static __always_inline void find_wait(struct wait *wait, const struct walk *walk)
{
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
    __u64 first = KERNEL(__u64, &regs->REGS_FIRST), file;
    struct polled polled = {};
    __s32 descriptor;
    __u64 nr;
    __u8 on;

    wait->syscall = KERNEL(REGS_CALL_TYPE, &regs->REGS_CALL);
    if (wait->syscall < 0 && !walk->off.uninterruptible) /* it was stopped, or is new */
        wait->syscall = SYSCALL_UNKNOWN;
    nr = wait->syscall;
    asm volatile("" : "+r"(nr)); /* or the compiler checks another register than it uses, where numbers have 32 bits */
    if (!SETTINGS->resources_known || nr >= WAITS_ON)
        return;
    on = SETTINGS->waits_on[nr];
    if (on == ON_NOTHING || on == ON_CHILD)
        return;
    descriptor = only_descriptor(on, first, regs);
    file = file_behind(bpf_get_current_task(), descriptor);
    if (descriptor < 0)
        take_polled(&polled, on, first, regs);
    else if (on == ON_EPOLL && SETTINGS->epoll_ready && file)
        polled.instance = KERNEL(__u64, file + SETTINGS->file_private);
    if (SETTINGS->sock_queue && (descriptor < 0 || polled.instance)) {
        __u64 found = first_ready(bpf_get_current_task(), &polled, &descriptor);

        file = found ? found : file;
    }
    wait->resource = resource_of(file, walk->user, walk->pid_tgid >> 32, descriptor);
}

/* Reports a sample to user space. */
static __always_inline void put(const struct walk *walk, __u64 ts, __u64 off_ns, __u32 state, __u64 task, const struct wait *wait)
{
    struct sample_event *event = 0;

    if (may_take(walk->user, OF_SAMPLES, SETTINGS->samples_room, 1, sizeof(*event)))
        event = samples.ringbuf_reserve(sizeof(*event));
    if (!event) {
        count_loss(LOSS_SAMPLE_RING);
        return;
    }
    event->ts = ts;
    event->pid_tgid = walk->pid_tgid;
    event->off_ns = off_ns;
    event->stack = walk->hash;
    event->task = task;
    event->cpu = bpf_get_smp_processor_id();
    event->opcode = walk->hash > SAMPLE_TORN ? walk->opcode : OPCODE_UNKNOWN;
    event->program = walk->program;
    event->missed = walk->missed;
    event->state = state;
    event->syscall = wait->syscall;
    event->pad = 0;
    event->resource = wait->resource;
    samples.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

static __always_inline void record(int which)
{
    struct wait none = {.syscall = SYSCALL_UNKNOWN}, wait = none;
    int zero = 0;
    struct walk *walk = walks.lookup(&which);
    __u64 stack, task, *total;
    __u8 one = 1;

    if (!walk)
        return;
    stack = walk->outcome == TORN ? SAMPLE_TORN : walk->count + walk->natives ? mixed(walk->hash, walk->native) | 2 : SAMPLE_NO_FRAMES;
    if (stack == SAMPLE_TORN)
        count_loss(LOSS_SAMPLE_TORN);
    if (walk->outcome == DEEP)
        count_loss(LOSS_STACK_DEPTH);
    if (walk->native == NATIVE_BROKEN)
        count_loss(LOSS_SAMPLE_NATIVE);
    walk->hash = stack;
    if (stack > SAMPLE_TORN && !known.lookup(&stack)) {
        if (report(walk))
            known.update(&stack, &one);
        else
            count_loss(LOSS_SAMPLE_RING);
    }
    task = stack > SAMPLE_TORN ? task_of(walk) : 0;
    if (walk->off.queued)
        put(walk, walk->began, walk->off.queued, SAMPLE_IN_QUEUE, task, &none);
    if (which == BACK && walk->off.waited && walk->off.state == SAMPLE_IN_BLOCKED)
        find_wait(&wait, walk);
    if (walk->off.waited || !walk->off.queued)
        put(walk, walk->began - walk->off.until, walk->off.waited, walk->off.state, task, &wait);
    total = spent.lookup(&zero);
    if (total)
        *total += bpf_ktime_get_ns() - walk->began;
}

int finish(struct bpf_perf_event_data *ctx)
{
    record(TICK);
    return 0;
}

int finish_back(struct bpf_raw_tracepoint_args *ctx)
{
    record(BACK);
    return 0;
}

/* A forked child has its creator's structures at the same addresses; user space has yet to find it. */
TRACEPOINT(sched_process_fork)
{
    __u64 task = ctx->args[1];
    __u32 parent = bpf_get_current_pid_tgid() >> 32, child = KERNEL(__u32, task + SETTINGS->task_tgid);
    struct sampled *process = processes.lookup(&parent), copy;
    int zero = 0;
    __u64 *counted;

    if (!SETTINGS->follow || !process || child != KERNEL(__u32, task + SETTINGS->task_pid))
        return 0;
    if (KERNEL(__u64, task + SETTINGS->task_mm) == KERNEL(__u64, ctx->args[0] + SETTINGS->task_mm)) /* vfork */
        return 0;
    copy = *process;
    copy.since = bpf_ktime_get_ns();
    processes.update(&child, &copy);
    counted = census.lookup(&zero);
    if (counted)
        *counted = copy.since;
    return 0;
}

TRACEPOINT(sched_process_exit)
{
    __u32 pid = bpf_get_current_pid_tgid() >> 32;

    if (pid == (__u32)bpf_get_current_pid_tgid())
        processes.delete(&pid);
    return 0;
}

/* What user space knows of the process does not hold for its new program. */
TRACEPOINT(sched_process_exec)
{
    __u32 pid = bpf_get_current_pid_tgid() >> 32;

    processes.delete(&pid);
    return 0;
}
