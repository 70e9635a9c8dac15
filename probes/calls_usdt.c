/* Function events from CPython's function__entry / function__return probes, and those of its collections and imports.
 *
 * Where an interpreter's probes have their arguments, and its structures their fields, is data: see struct settings, which
 * record/usdt/probes.py fills in.
 * The common path of a call is two array look-ups and one ring record.
 */
#include <uapi/linux/ptrace.h>
#include "calls.h"
#include "frames.h"
#include "operands.h"

struct line_layout {
    __s32 frame_size; /* bytes of a frame to read: all fields of struct frame_layout used here lie within them */
    __s32 code_lines; /* the line table, a bytes object */
    __s32 unit;       /* bytes that one of a frame's position stands for */
    __s32 pad;
};

struct arguments {
    struct operand file, name, line, frame;
};

/* Of objects: offsets, by the names that record/cpython/layout.py has for them, and what distinguishes them. */
struct object_layout {
    /* How far an object of the interpreter's own is from PyType_Type; 1 = it is not known where it is. */
    __s64 none, true_object, false_object, float_type, set_type, frozenset_type, bytearray_type, cell_type, wrapped_type;
    __s64 gil; /* and how far up to 3.11 the pointer to the thread that holds the GIL is, then the one to the main interpreter */
    __s32 frame_locals;
    __s32 code_arguments;
    __s32 code_keyword_only;
    __s32 code_locals;
    __s32 code_variables;
    __s32 code_kinds;
    __s32 code_cells;
    __s32 code_cell_arguments;
    __s32 tuple_items;
    __s32 type_cached_keys;
    __s32 string_length;
    __s32 string_state;
    __s32 string_data_wide;
    __s32 frame_top;
    __s32 return_opcode;
    __s32 code_bytes;
    __s32 thread_frame;
    __s32 cframe_frame;
    __s32 thread_exception;
    __s32 interpreter_gil;
    __s32 gil_holder;
    __u32 is_3_12; /* or later: the count of an int's digits is behind its sign, an exception that is raised is an object */
    __u32 tagged_references;
    __u32 cells_at_entry; /* arguments that inner functions use are in cells when function__entry fires, not of generators alone */
};

struct settings {
    struct frame_layout layout;
    struct line_layout lines;
    struct arguments entry, leaving; /* of function__entry and function__return; the frame's operand may be unknown */
    struct operand gc_generation;    /* of gc__start */
    struct operand import_name;      /* of import__find__load__start */
    __u32 creation_entry;            /* creating a generator fires an entry of its own (3.15) */
    __u32 cpus;                      /* more than the highest number that a core can have */
    struct object_layout objects;
    __u32 observes;                  /* values are asked for */
    __u32 pad;
};
LAYOUT(settings);
#define FRAMES (&SETTINGS->layout)

#define GENERATOR (0x20 | 0x80 | 0x200) /* CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR */

#include "usdt_values.h"

/* Written by user space and, the generation, by the programs. */
struct control {
    __u32 recording;  /* 0 = no, 1 = yes */
    __u32 opening;    /* process whose threads' open frames are walked at their first event; 0 = none */
    __u32 generation; /* known functions of an older generation are asked for again */
    __u32 counting;   /* 1 = while nothing is recorded, entries are counted */
    __u32 attached;   /* how often a process was attached to */
    __u32 pad;
};
BPF_ARRAY(control, struct control, 1);

#include "call_lines.h"

BPF_PERCPU_ARRAY(counted, __u64, 1);

/* Processes whose open frames are being reported, or were: what begins in another one began before its recording. */
BPF_HASH(opened, __u32, __u8, 65536);

/* thread id -> next frame to walk; 0 = walked to the end */
BPF_HASH(walks, __u32, __u64, 65536);

#define WALK_STEP 128

/* Emits the frames that were open when recording began, innermost first, WALK_STEP at a hit:
 * a thread cannot return through that many frames before its next hit. */
static __always_inline void walk(__u64 ts, __u64 pid_tgid, __u64 frame, __u32 skip_first)
{
    __u32 tid = pid_tgid, i;
    __u64 *resume = walks.lookup(&tid);

    if (resume)
        frame = *resume;
    else if (skip_first && frame)
        frame = previous(FRAMES, frame);
    for (i = 0; i < WALK_STEP && frame; i++) {
        __u64 code = code_of(FRAMES, frame);

        if (is_python(FRAMES, frame))
            emit(ts, pid_tgid, code, frame, code >> 32, CALL_OPEN);
        frame = previous(FRAMES, frame);
    }
    walks.update(&tid, &frame);
}

int function_entry(struct pt_regs *ctx)
{
    int zero = 0;
    struct control *now = control.lookup(&zero);
    __u64 ts, pid_tgid, frame;
    __s32 line;

    if (!now || !now->recording) {
        __u64 *count = now && now->counting ? counted.lookup(&zero) : 0;

        if (count)
            *count += 1;
        return 0;
    }
    ts = bpf_ktime_get_ns();
    pid_tgid = bpf_get_current_pid_tgid();
    frame = value_at(ctx, &SETTINGS->entry.frame);
    line = value_at(ctx, &SETTINGS->entry.line);
    if (now->opening == pid_tgid >> 32)
        walk(ts, pid_tgid, frame, 1);

    struct key key = {
        .file = value_at(ctx, &SETTINGS->entry.file), .name = value_at(ctx, &SETTINGS->entry.name),
        .tgid = pid_tgid >> 32, .generation = now->generation, .line = line,
    };
    if (line < 0)
        key.line = BY_CODE | (code_of(FRAMES, frame) >> 4);
    struct known function = identify(ts, pid_tgid, &key, line, frame);
    int of_generator = function.flags & GENERATOR && frame;

    if (SETTINGS->creation_entry && of_generator && TAKE(__u8, frame + FRAMES->frame_owner) == OWNED_BY_THREAD)
        return 0; /* only the creation of the generator */
    int is_resumed = of_generator && resumes(FRAMES, frame);
    __u32 site = called_from(now, ts, key.tgid, frame, &function);

    emit(ts, pid_tgid, function.id, frame, site, is_resumed ? CALL_RESUME : CALL_ENTRY);
    if (SETTINGS->observes && function.flags & OBSERVABLE && !is_resumed && observe_arguments(ts, pid_tgid, function.id, frame, of_generator))
        observers.call(ctx, 0);
    return 0;
}

int function_return(struct pt_regs *ctx)
{
    int zero = 0;
    struct control *now = control.lookup(&zero);
    __u64 ts, pid_tgid, frame;
    __s32 line;

    if (!now || !now->recording)
        return 0;
    frame = value_at(ctx, &SETTINGS->leaving.frame);
    line = value_at(ctx, &SETTINGS->leaving.line);
    struct key key = {
        .file = value_at(ctx, &SETTINGS->leaving.file), .name = value_at(ctx, &SETTINGS->leaving.name),
        .generation = now->generation, .line = AT_RETURN,
    };
    if (key.file == key.name && line == -1)
        return 0; /* 3.15: CPython's shim around __init__, not a frame of the program */
    ts = bpf_ktime_get_ns();
    pid_tgid = bpf_get_current_pid_tgid();
    key.tgid = pid_tgid >> 32;
    if (now->opening == pid_tgid >> 32)
        walk(ts, pid_tgid, frame, 0);
    struct known function = identify(ts, pid_tgid, &key, line, frame);

    int observes = SETTINGS->observes && function.flags & OBSERVABLE; /* by a namesake's file and name, which are its own */

    /* throw() fires no entry that would name it, and one of two namesakes may be observed: identified by the code object */
    if (observes || (SETTINGS->creation_entry && function.flags & GENERATOR)) {
        key.line = BY_CODE | (code_of(FRAMES, frame) >> 4);
        function = identify(ts, pid_tgid, &key, line, frame);
    }
    int may_yield = !is_plain(frame, key.tgid, era_of(now));
    __u32 kind = may_yield && yields(FRAMES, frame) ? CALL_YIELD : observes && is_raised(frame) ? CALL_UNWIND : CALL_RETURN;

    emit(ts, pid_tgid, function.id, frame, line, kind);
    if (observes)
        observe_result(ts, pid_tgid, function.id, frame, kind);
    return 0;
}

/* Collections and imports whose begin was reported, by thread and stack pointer (a thread has one collection at a time:
 * COLLECTION). A return without one belongs to a call from before the recording, which is not reported. */
#define COLLECTION 8
struct begun {
    __u64 stack;
    __u32 tid;
    __u32 pad;
};
BPF_TABLE("lru_hash", struct begun, __u32, begun, 16384);
BPF_ARRAY(generations, __u32, 3); /* ids of the collections */

/* Introduces what is no Python function. Its id; 0 = it could not be reported. */
static __always_inline __u32 introduce_layer(__u64 ts, __u64 pid_tgid, __u32 layer, __s32 line, __u64 name)
{
    __u32 number, id;
    struct draft *draft = take_draft(&number);

    if (!draft)
        return 0;
    read_names(&draft->function, 0, name);
    read_code(&draft->function, 0);
    draft->function.layer = layer;
    id = send(draft, number, ts, pid_tgid, line);
    NO_MORE(draft->users);
    return id;
}

/* Is it to be reported? Not before its process is opened; while it is, not before the open frames of its thread were reported. */
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
    emit(ts, pid_tgid, func, stack, 0, CALL_ENTRY);
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

int gc_start(struct pt_regs *ctx)
{
    __u64 ts = bpf_ktime_get_ns(), pid_tgid = bpf_get_current_pid_tgid();
    int generation = value_at(ctx, &SETTINGS->gc_generation);
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

int import_start(struct pt_regs *ctx)
{
    __u64 ts = bpf_ktime_get_ns(), pid_tgid = bpf_get_current_pid_tgid();

    if (may_begin(pid_tgid))
        begin(ts, pid_tgid, ctx->sp, introduce_layer(ts, pid_tgid, LAYER_IMPORT, -1, value_at(ctx, &SETTINGS->import_name)));
    return 0;
}

int import_done(struct pt_regs *ctx)
{
    end(bpf_ktime_get_ns(), bpf_get_current_pid_tgid(), ctx->sp);
    return 0;
}

TRACEPOINT(sched_process_exec)
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
