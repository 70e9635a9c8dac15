/* Function events from CPython's function__entry / function__return probes, and those of its collections and imports.
 *
 * Knobs, all per interpreter binary (record/usdt_probes.py computes them):
 *   ENTRY_FILE, ENTRY_NAME, ENTRY_LINE, ENTRY_FRAME     registers at function__entry
 *   RETURN_FILE, RETURN_NAME, RETURN_LINE, RETURN_FRAME registers at function__return
 *       (the *_FRAME ones are left out where they could not be found)
 *   FRAME_CODE, FRAME_PREVIOUS, FRAME_OWNER             offsets in the interpreter's frame
 *   OWNER_SHIM                                          owners from this on are no Python frames
 *   FRAME_POSITION, and CODE_START (3.11 on)             where a frame stands, and where the code begins
 *   FRAME_STACKTOP (3.8, 3.9), GENERATOR_STATE (3.10, 3.11) or YIELD_VALUE (3.15)  what tells that a generator yields
 *   CODE_FLAGS, CODE_FIRST_LINE, CODE_QUALNAME          offsets in the code object
 *   STRING_DATA                                         offset of a str's ASCII data
 *   GC_GENERATION, IMPORT_NAME                          places at gc__start and import__find__load__start, where it has them
 *   CREATION_ENTRY  set where creating a generator fires an entry of its own (3.15)
 *   CPUS, CALL_RING_PAGES, FUNCTION_RING_PAGES, FUNCTIONS, WALK_STEP
 *
 * The common path of a call is two array look-ups and one ring record.
 */
#include <uapi/linux/ptrace.h>
#include "calls.h"
#include "usdt_functions.h"

/* Written by user space and, the generation, on exec. */
struct control {
    __u32 recording;  /* 0 = no, 1 = yes */
    __u32 opening;    /* process whose threads' open frames are walked at their first event; 0 = none */
    __u32 generation; /* known functions of an older generation are asked for again */
    __u32 pad;
};
BPF_ARRAY(control, struct control, 1);

/* Processes whose open frames are being told, or were: what begins in another one is from before its recording. */
BPF_HASH(opened, __u32, __u8, 65536);

/* thread id -> next frame to walk; 0 = walked to the end */
BPF_HASH(walks, __u32, __u64, 65536);

#define GENERATOR (0x20 | 0x80 | 0x200) /* CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR */

#define OWNED_BY_GENERATOR 1
#define SUSPENDED (-1) /* FRAME_SUSPENDED of 3.10 and 3.11 */

/* Had the frame, of a generator, yielded before it was entered now? */
static __always_inline int resumes(__u64 frame)
{
#ifdef CODE_START
    __u64 code = code_of(frame);
    __s64 position = TAKE(__u64, frame + FRAME_POSITION) - code - CODE_START;

    /* Behind _co_firsttraceable; where the instruction that is next is told, one more. */
    return position > 2 * (__s64)TAKE(__s32, code + CODE_START - 16) + 2;
#else
    return TAKE(__s32, frame + FRAME_POSITION) >= 0;
#endif
}

/* Is the frame left by yielding? Asked of the frame alone: a namesake's flags may stand for its function at a return. */
static __always_inline int yields(__u64 frame)
{
#ifdef FRAME_OWNER
    if (!frame || TAKE(__u8, frame + FRAME_OWNER) != OWNED_BY_GENERATOR)
        return 0;
#endif
#ifdef FRAME_STACKTOP
    return frame && TAKE(__u64, frame + FRAME_STACKTOP) != 0;
#elif defined(GENERATOR_STATE)
    return frame && TAKE(__s8, frame + GENERATOR_STATE) == SUSPENDED;
#else
    /* Its state is set later. So it stands, too, when what is thrown into it leaves it at once; such has no entry. */
    return TAKE(__u8, TAKE(__u64, frame + FRAME_POSITION) - 2) == YIELD_VALUE;
#endif
}

/* Emits the frames that were open when recording began, innermost first, WALK_STEP at a hit:
 * a thread cannot return through that many frames before its next hit. */
static __always_inline void walk(__u64 ts, __u64 pid_tgid, __u64 frame, __u32 skip_first)
{
    __u32 tid = pid_tgid, i;
    __u64 *resume = walks.lookup(&tid);

    if (resume)
        frame = *resume;
    else if (skip_first && frame)
        frame = TAKE(__u64, frame + FRAME_PREVIOUS);
    for (i = 0; i < WALK_STEP && frame; i++) {
        __u64 code = code_of(frame);

#ifdef FRAME_OWNER
        if (TAKE(__u8, frame + FRAME_OWNER) < OWNER_SHIM)
#endif
            emit(ts, pid_tgid, code, frame, code >> 32, CALL_OPEN);
        frame = TAKE(__u64, frame + FRAME_PREVIOUS);
    }
    walks.update(&tid, &frame);
}

#ifndef ENTRY_FRAME
#define ENTRY_FRAME 0
#endif
#ifndef RETURN_FRAME
#define RETURN_FRAME 0
#endif

int function_entry(struct pt_regs *ctx)
{
    int zero = 0;
    struct control *now = control.lookup(&zero);
    __u64 ts, pid_tgid, frame = ENTRY_FRAME;

    if (!now || !now->recording)
        return 0;
    ts = bpf_ktime_get_ns();
    pid_tgid = bpf_get_current_pid_tgid();
    if (now->opening == pid_tgid >> 32)
        walk(ts, pid_tgid, frame, 1);

    struct key key = {
        .file = ENTRY_FILE, .name = ENTRY_NAME, .tgid = pid_tgid >> 32, .generation = now->generation,
        .line = ENTRY_LINE,
    };
    if ((__s32)key.line < 0)
        key.line = BY_CODE | (code_of(frame) >> 4);
    struct known function = identify(ts, pid_tgid, &key, ENTRY_LINE, frame);
#ifdef CREATION_ENTRY
    if (function.flags & GENERATOR && frame && TAKE(__u8, frame + FRAME_OWNER) == 0)
        return 0; /* still owned by the thread: only the creation of the generator */
#endif
    emit(ts, pid_tgid, function.id, frame, ENTRY_LINE,
         function.flags & GENERATOR && frame && resumes(frame) ? CALL_RESUME : CALL_ENTRY);
    return 0;
}

int function_return(struct pt_regs *ctx)
{
    int zero = 0;
    struct control *now = control.lookup(&zero);
    __u64 ts, pid_tgid, frame = RETURN_FRAME;

    if (!now || !now->recording)
        return 0;
    struct key key = {
        .file = RETURN_FILE, .name = RETURN_NAME, .generation = now->generation, .line = AT_RETURN,
    };
    if (key.file == key.name && (__s32)RETURN_LINE == -1)
        return 0; /* 3.15: the shim that finishes __init__, no frame of the program */
    ts = bpf_ktime_get_ns();
    pid_tgid = bpf_get_current_pid_tgid();
    key.tgid = pid_tgid >> 32;
    if (now->opening == pid_tgid >> 32)
        walk(ts, pid_tgid, frame, 0);
    struct known function = identify(ts, pid_tgid, &key, RETURN_LINE, frame);
#ifdef CREATION_ENTRY
    if (function.flags & GENERATOR) { /* a throw() gives no entry to name it: be exact among namesakes */
        key.line = BY_CODE | (code_of(frame) >> 4);
        function = identify(ts, pid_tgid, &key, RETURN_LINE, frame);
    }
#endif
    emit(ts, pid_tgid, function.id, frame, RETURN_LINE,
         yields(frame) ? CALL_YIELD : CALL_RETURN);
    return 0;
}

/* Collections and imports that were told to have begun, by thread and stack pointer (of a collection, which a thread has
 * but one of, COLLECTION). A return without one belongs to a call from before the recording, of which nothing is told. */
#define COLLECTION 8
struct begun {
    __u64 stack;
    __u32 tid;
    __u32 pad;
};
BPF_TABLE("lru_hash", struct begun, __u32, begun, 16384);
BPF_ARRAY(generations, __u32, 3); /* ids of the collections */

/* Introduces what is no Python function. Its id; 0 = it could not be told. */
static __always_inline __u32 introduce_layer(__u64 ts, __u64 pid_tgid, __u32 layer, __s32 line, __u64 name)
{
    __u32 number, id;
    struct desk *desk = take_desk(&number);

    if (!desk)
        return 0;
    read_names(&desk->function, 0, name);
    read_code(&desk->function, 0);
    desk->function.layer = layer;
    id = send(desk, number, ts, pid_tgid, line);
    NO_MORE(desk->users);
    return id;
}

/* Is it to be told? Not before its process is opened; while it is, not before the open frames of its thread were told. */
static __always_inline int may_begin(__u64 pid_tgid)
{
    int zero = 0;
    struct control *now = control.lookup(&zero);
    __u32 pid = pid_tgid >> 32, tid = pid_tgid;

    return now && now->recording && opened.lookup(&pid) && (now->opening != pid || walks.lookup(&tid));
}

static __always_inline void begin(__u64 ts, __u64 pid_tgid, __u64 stack, __u32 func)
{
    struct begun key = {.stack = stack, .tid = pid_tgid};

    begun.update(&key, &func);
    emit(ts, pid_tgid, func, stack, -1, CALL_ENTRY);
}

static __always_inline void end(__u64 ts, __u64 pid_tgid, __u64 stack)
{
    int zero = 0;
    struct control *now = control.lookup(&zero);
    struct begun key = {.stack = stack, .tid = pid_tgid};
    __u32 *func = begun.lookup(&key);

    if (!func || !now || !now->recording)
        return;
    emit(ts, pid_tgid, *func, stack, -1, CALL_RETURN);
    begun.delete(&key);
}

#ifdef GC_GENERATION
int gc_start(struct pt_regs *ctx)
{
    __u64 ts = bpf_ktime_get_ns(), pid_tgid = bpf_get_current_pid_tgid();
    int generation = GC_GENERATION;
    __u32 *id = generations.lookup(&generation);

    if (!id || !may_begin(pid_tgid))
        return 0;
    if (!*id)
        *id = introduce_layer(ts, pid_tgid, LAYER_GC, generation, 0);
    begin(ts, pid_tgid, COLLECTION, *id);
    return 0;
}

int gc_done(struct pt_regs *ctx)
{
    end(bpf_ktime_get_ns(), bpf_get_current_pid_tgid(), COLLECTION);
    return 0;
}
#endif

#ifdef IMPORT_NAME
int import_start(struct pt_regs *ctx)
{
    __u64 ts = bpf_ktime_get_ns(), pid_tgid = bpf_get_current_pid_tgid();

    if (may_begin(pid_tgid))
        begin(ts, pid_tgid, ctx->sp, introduce_layer(ts, pid_tgid, LAYER_IMPORT, -1, IMPORT_NAME));
    return 0;
}

int import_done(struct pt_regs *ctx)
{
    end(bpf_ktime_get_ns(), bpf_get_current_pid_tgid(), ctx->sp);
    return 0;
}
#endif

TRACEPOINT_PROBE(sched, sched_process_exec)
{
    int zero = 0;
    struct control *now = control.lookup(&zero);

    /* The new program's addresses mean other functions. */
    if (now && now->recording)
        __sync_fetch_and_add(&now->generation, 1);
    return 0;
}

/* For a uprobe on a function that never runs: it only raises a semaphore (3.11's `line`). */
int function_never(struct pt_regs *ctx)
{
    return 0;
}
