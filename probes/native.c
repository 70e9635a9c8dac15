/* Calls of native functions: ATen operators, BLAS, the CUDA runtime.
 *
 * A function is identified by the cookie of its probes, its index in `natives`. Operators may throw C++ exceptions,
 * and an unwinder that meets a return probe's trampoline ends the process: so ends are probes on branches just before the
 * `ret`, or on that itself. The address of the return address on the stack distinguishes activations.
 */
#include <uapi/linux/ptrace.h>
#include "calls.h"

struct settings {
    __u64 tensor_sizes; /* offset of sizes_and_strides_ in a c10::TensorImpl */
};
LAYOUT(settings);

BPF_RINGBUF_OUTPUT(arguments, RING_PAGES);
BPF_RINGBUF_OUTPUT(errors, RING_PAGES);
LAYOUT(tensors_event);
LAYOUT(error_event);

/* How an argument leads to a tensor. */
#define BY_REFERENCE 0  /* Tensor & */
#define OPTIONAL 1      /* optional<Tensor> & */
#define LIST 2          /* ArrayRef<Tensor>, in two places */
#define LIST_REFERENCE 3 /* ITensorListRef & */
#define OPTIONALS 4     /* List<optional<Tensor>> & */

struct native {
    __u32 tensors;  /* how many of the arguments below are tensors; for a gemm 0 */
    __u32 gemm;     /* 1 + position of m, followed by n and k; 0 = it is none */
    __u32 wide;     /* gemm: the numbers have 64 bits */
    __u32 indirect; /* gemm: they are passed by reference (Fortran) */
    __u32 data_type; /* gemm: of its numbers */
    __u32 results;  /* tensors that are returned: by value or reference where 1, as a tuple where more */
    __u8 position[TENSORS]; /* of a tensor: 0 to 5 among the integer registers, from 6 on a word of the stack */
    __u8 how[TENSORS];
};
BPF_ARRAY(natives, struct native, 8192);

/* Activations of operators that are open, by thread: who of them is left when an exception is caught. */
#define OPEN_DEPTH 32
struct open_natives {
    __u32 depth;
    __u32 pad;
    __u64 stack[OPEN_DEPTH];
    __u64 first[OPEN_DEPTH]; /* argument: where the result goes, or what is changed in place */
    __u32 func[OPEN_DEPTH];
};
BPF_TABLE("lru_hash", __u32, struct open_natives, open_natives, 8192);
BPF_PERCPU_ARRAY(nothing_open, struct open_natives, 1);

struct native_control {
    __u32 recording;
};
BPF_ARRAY(control, struct native_control, 1);

static __always_inline int recording(void)
{
    int zero = 0;
    struct native_control *now = control.lookup(&zero);

    return now && now->recording;
}

/* An argument of class INTEGER: 0-5 in a register, from 6 on on the stack. */
static __always_inline __u64 argument(struct pt_regs *ctx, __u32 position)
{
    switch (position) {
    case 0: return ctx->di;
    case 1: return ctx->si;
    case 2: return ctx->dx;
    case 3: return ctx->cx;
    case 4: return ctx->r8;
    case 5: return ctx->r9;
    }
    return TAKE(__u64, ctx->sp + 8 + 8 * (position - 6));
}

/* c10::TensorImpl, from sizes_and_strides_ on; verified by numel (record/native/tensors.py). */
struct tensor_impl {
    __u64 dims;
    __s64 sizes[TENSOR_DIMS]; /* from more than TENSOR_DIMS on a pointer */
    __s64 strides[TENSOR_DIMS];
    __s64 storage_offset;
    __s64 numel;
    __u16 data_type;
    __u8 device[4];
    __u8 flags;
};
#define CUSTOM_SIZES 8 /* of flags: what stands here is not its sizes: nested, or symbolic ones */

static __always_inline void read_tensor(struct tensor *to, __u64 tensor)
{
    struct tensor_impl impl;
    __u64 address = tensor ? TAKE(__u64, tensor) : 0;
    int i;

    to->dims = TENSOR_ABSENT;
    if (!address || bpf_probe_read_user(&impl, sizeof(impl), (void *)(address + SETTINGS->tensor_sizes)))
        return;
#pragma unroll
    for (i = 0; i < TENSOR_DIMS; i++)
        to->sizes[i] = impl.sizes[i];
    to->numel = impl.numel;
    to->data_type = impl.data_type;
    if (!(impl.flags & CUSTOM_SIZES))
        to->dims = impl.dims;
}

static __always_inline struct tensors_event *reserve(__u64 ts, __u64 pid_tgid, __u32 func, __u32 result)
{
    struct tensors_event *event = arguments.ringbuf_reserve(sizeof(*event));

    if (!event) {
        count_loss(LOSS_ARGUMENT_RING);
        return 0;
    }
    event->ts = ts;
    event->pid_tgid = pid_tgid;
    event->func = func;
    event->result = result;
    event->count = 0;
    event->pad = 0;
    return event;
}

/* Each turn looks at the next argument, or reads the next tensor of the last one. In two loops the verifier would follow the inner one for each way that the outer
 * has come; so it would for counters that it knows, which therefore lie in the event. */
static __always_inline void read_arguments(struct pt_regs *ctx, struct tensors_event *event, const struct native *native)
{
    __u32 turn, step = 8;
    __u64 at = 0, left = 0;

    for (turn = 0; turn < 2 * TENSORS; turn++) {
        __u64 count = *(volatile __u16 *)&event->count, next = *(volatile __u64 *)&event->pad;

        if (count >= TENSORS)
            break;
        if (left) {
            read_tensor(&event->tensors[count & (TENSORS - 1)], at);
            event->count = count + 1;
            at = at ? at + step : 0;
            left--;
            continue;
        }
        if (next >= native->tensors || next >= TENSORS)
            break;
        event->pad = next + 1;
        at = argument(ctx, native->position[next]);
        left = 1;
        step = 8;
        switch (native->how[next]) {
        case OPTIONAL:
            at = TAKE(__u8, at + 8) ? at : 0;
            break;
        case LIST:
            left = argument(ctx, native->position[next] + 1);
            break;
        case LIST_REFERENCE: /* an ArrayRef where the tag behind it is 0 */
            left = TAKE(__u32, at + 16) ? 0 : TAKE(__u64, at + 8);
            at = TAKE(__u64, at);
            break;
        case OPTIONALS: /* a pointer to a ListImpl, with a vector of IValues behind its counter */
            at = TAKE(__u64, at);
            step = 16;
            left = (TAKE(__u64, at + 24) - TAKE(__u64, at + 16)) / step;
            at = TAKE(__u64, at + 16);
            break;
        }
    }
    event->pad = 0;
}

static __always_inline void read_gemm(struct pt_regs *ctx, struct tensors_event *event, const struct native *native)
{
    __s64 size[3];
    int i;

#pragma unroll
    for (i = 0; i < 3; i++) {
        __u64 value = argument(ctx, native->gemm - 1 + i);

        if (native->indirect)
            value = TAKE(__u64, value);
        size[i] = native->wide ? (__s64)value : (__s32)value;
    }
    event->count = 2;
    event->tensors[0].sizes[0] = size[0];
    event->tensors[0].sizes[1] = event->tensors[1].sizes[0] = size[2];
    event->tensors[1].sizes[1] = size[1];
    event->tensors[0].data_type = event->tensors[1].data_type = native->data_type;
    event->tensors[0].dims = event->tensors[1].dims = 2;
    event->tensors[0].numel = size[0] * size[2];
    event->tensors[1].numel = size[2] * size[1];
}

/* Operators whose frame lies below `stack` are gone: they were left by an exception. */
static __always_inline void unwind(struct open_natives *open, __u64 ts, __u64 pid_tgid, __u64 stack)
{
    int i;

    for (i = 0; i < OPEN_DEPTH; i++) {
        __u32 top = open->depth - 1;

        if (top >= OPEN_DEPTH || open->stack[top] >= stack)
            break;
        emit(ts, pid_tgid, open->func[top], open->stack[top], -1, CALL_UNWIND);
        open->depth = top;
    }
}

int native_entry(struct pt_regs *ctx)
{
    __u64 ts = bpf_ktime_get_ns(), pid_tgid = bpf_get_current_pid_tgid();
    __u32 func = bpf_get_attach_cookie(ctx), tid = pid_tgid;
    int zero = 0;
    struct native *native = natives.lookup((int *)&func);
    struct open_natives *open = open_natives.lookup(&tid), *fresh = nothing_open.lookup(&zero);
    struct tensors_event *event;

    if (!native || !recording())
        return 0;
    if (!open && fresh) {
        open_natives.update(&tid, fresh);
        open = open_natives.lookup(&tid);
    }
    if (!open)
        return 0;
    unwind(open, ts, pid_tgid, ctx->sp + 1);
    if (open->depth >= OPEN_DEPTH) {
        count_loss(LOSS_STACK_DEPTH);
        return 0;
    }
    open->stack[open->depth & (OPEN_DEPTH - 1)] = ctx->sp;
    open->first[open->depth & (OPEN_DEPTH - 1)] = ctx->di;
    open->func[open->depth & (OPEN_DEPTH - 1)] = func;
    open->depth++;
    emit(ts, pid_tgid, func, ctx->sp, -1, CALL_ENTRY);
    if (!native->tensors && !native->gemm)
        return 0;
    event = reserve(ts, pid_tgid, func, 0);
    if (!event)
        return 0;
    if (native->gemm)
        read_gemm(ctx, event, native);
    else
        read_arguments(ctx, event, native);
    arguments.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    return 0;
}

/* In the cookie: this is the kernel's own return probe, where the return address is off the stack already. */
#define AFTER_RETURN (1ULL << 32)
/* Above it: bytes of stack that the function still has; it has not returned yet (record/native/code.py). */
#define STACK_SHIFT 33
#define BY_FRAME_POINTER 1 /* instead: rbp, as it is after `push %rbp; mov %rsp,%rbp` */

int native_return(struct pt_regs *ctx)
{
    __u64 ts = bpf_ktime_get_ns(), pid_tgid = bpf_get_current_pid_tgid();
    __u64 cookie = bpf_get_attach_cookie(ctx), size = cookie >> STACK_SHIFT, result = ctx->ax;
    __u64 stack = size == BY_FRAME_POINTER ? ctx->bp + 8 : ctx->sp + size - (cookie & AFTER_RETURN ? 8 : 0);
    __u32 func = cookie, tid = pid_tgid, i;
    struct native *native = natives.lookup((int *)&func);
    struct open_natives *open = open_natives.lookup(&tid);
    struct tensors_event *event;

    if (!native || !open || !recording())
        return 0;
    unwind(open, ts, pid_tgid, stack);
    if (!open->depth || open->stack[(open->depth - 1) & (OPEN_DEPTH - 1)] != stack)
        return 0; /* it was entered before it was probed, or its return was reported already */
    open->depth--;
    if (size)
        result = open->first[open->depth & (OPEN_DEPTH - 1)];
    emit(ts, pid_tgid, func, stack, -1, CALL_RETURN);
    if (!native->results)
        return 0;
    event = reserve(ts, pid_tgid, func, 1);
    if (!event)
        return 0;
    for (i = 0; i < TENSORS; i++) {
        if (i >= native->results)
            break;
        /* libstdc++ lays out a tuple from its last element to its first. */
        read_tensor(&event->tensors[i], result + 8 * (native->results - 1 - i));
    }
    event->count = i;
    arguments.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    return 0;
}

/* __cxa_begin_catch: the handler's frame is the innermost one now. */
int caught(struct pt_regs *ctx)
{
    __u64 pid_tgid = bpf_get_current_pid_tgid();
    __u32 tid = pid_tgid;
    struct open_natives *open = open_natives.lookup(&tid);

    if (open && recording())
        /* One that the handler's own function called had its return address where that of __cxa_begin_catch is now. */
        unwind(open, bpf_ktime_get_ns(), pid_tgid, ctx->sp + 1);
    return 0;
}

/* c10::Error is made: `this`, a std::string by reference. */
int error_made(struct pt_regs *ctx)
{
    struct error_event *event;

    if (!recording())
        return 0;
    event = errors.ringbuf_reserve(sizeof(*event));
    if (!event)
        return 0;
    event->ts = bpf_ktime_get_ns();
    event->pid_tgid = bpf_get_current_pid_tgid();
    event->text[0] = 0;
    bpf_probe_read_user_str(event->text, ERROR_SIZE, (void *)TAKE(__u64, ctx->si));
    errors.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    return 0;
}
