/* The contract between the kernel half and user space.
 *
 * Every ring carries records of one fixed size, so user space maps a ring as a
 * NumPy structured array. The dtypes are derived from what the compiler says of
 * these structs (the LAYOUT maps in common.h); nothing is typed twice.
 * All structs are multiples of 8 bytes without implicit padding.
 */
#ifndef PYTRACE_EVENTS_H
#define PYTRACE_EVENTS_H

/* call_event.kind */
#define CALL_ENTRY 0  /* a frame started */
#define CALL_RETURN 1 /* a frame returned or was unwound */
#define CALL_OPEN 2   /* a frame that was open when recording began; outermost first */
#define CALL_RESET 3  /* exec: every open call of the thread is gone */
#define CALL_UNWIND 4 /* a frame was left by an exception, where the source distinguishes it from CALL_RETURN */
#define CALL_RESUME 5 /* a generator or coroutine that had yielded was resumed, or thrown into */
#define CALL_YIELD 6  /* it yielded: its frame lives on */
#define CALL_LINE 7   /* the innermost frame came to a line */
#define CALL_STANDS 8 /* it stands at a line that it had come to before: it was resumed, or was open when recording began */

struct call_event {
    __u64 ts;       /* ns, CLOCK_MONOTONIC */
    __u64 pid_tgid; /* process id in the upper half, thread id in the lower */
    __u32 func;     /* function_event.id; 0 = unknown. CALL_OPEN: low half of the code object */
    __u32 frame;    /* low half of the interpreter frame's address >> 3; 0 = unknown */
    __s32 line;     /* entry: call_site.number of the place it was called from, 0 = unknown; return: line that returned.
                       CALL_OPEN: high half of the code object */
    __u32 kind;     /* CALL_* */
};

/* function_event.layer: the index into LAYERS of trace/schema.py */
#define LAYER_PYTHON 0
#define LAYER_GC 1     /* line: the generation that is collected */
#define LAYER_IMPORT 2 /* name: of the module */
#define LAYER_C 6      /* name: of what is written in C, with its type's or module's before it */

#define FILE_SIZE 512
#define NAME_SIZE 128
#define QUALNAME_SIZE 256

struct function_event {
    __u64 ts;
    __u64 pid_tgid;
    __u64 code;       /* address of the code object, 0 = not read */
    __u32 id;
    __s32 line;       /* line the probe gave */
    __s32 first_line; /* co_firstlineno, -1 = not read */
    __s32 flags;      /* co_flags, 0 = not read */
    __u32 layer;      /* LAYER_* */
    __u32 observable; /* 1 = by its file and name it may be one whose values are asked for */
    char file[FILE_SIZE];
    char name[NAME_SIZE];
    char qualname[QUALNAME_SIZE]; /* empty = not read */
};

/* A place that calls, and the line table by which user space finds its line. */
struct call_site {
    __u32 number;
    __u32 caller;     /* function_event.id, 0 = unknown */
    __u32 position;   /* of the instruction: bytes from the first one */
    __s32 first_line; /* co_firstlineno */
    __u64 size;       /* bytes of the table; larger than it: it could not be read */
};

struct call_site_event {
    struct call_site site;
    char table[488];
};

struct long_call_site_event {
    struct call_site site;
    char table[4072];
};

/* sched_event.kind */
#define SCHED_IN 0      /* tid got the core; other = thread that left it */
#define SCHED_OUT 1     /* tid left the core; other = thread that got it */
#define SCHED_WAKING 2  /* tid became runnable; other = waker */
#define SCHED_MIGRATE 3 /* tid was moved to the run queue of cpu; other = cpu it came from */
#define SCHED_FORK 4    /* tid was created by thread other */
#define SCHED_EXEC 5    /* tid replaced its program */
#define SCHED_EXIT 6    /* tid ended */

#define EXIT_FOR_MEMORY 0x10000 /* bits of an exit's state: the kernel killed it for want of memory */
#define EXIT_KNOWN 0x20000
#define EXIT_OF_AGENT 0x40000 /* it was the agent's thread */

#define BY_TIMER 1 /* bits of a wake-up's state: an interrupt of a timer, or of a device, or a softirq of timers and block devices */
#define BY_DEVICE 2
#define BY_SOFTIRQ 4

#define HOLDER_UNKNOWN (-1)

/* Of sched_event.address. No futex is at such addresses, and objects are at multiples of 16. */
#define PAUSED 1       /* it waits for no lock, but until a stop-the-world pause is over, or begins */
#define OBJECT_LOCK 10 /* its last four bits: of an object's own lock, ob_mutex of builds without a GIL */
#define OTHER_GIL 5    /* its last three bits: of the own GIL of an interpreter beside the main one, at the rest of it */

struct sched_event {
    __u64 ts;
    __u32 pid; /* process of tid */
    __u32 tid; /* thread the row is about */
    __u32 other;
    __s32 syscall;   /* OUT: system call number it left in, -1 = none */
    __u64 address;   /* OUT: first argument of the system call (futex: its address, or that of the Python lock it is for, or PAUSED)
                        IN: ns of the wait in the run queue that ends, for which its control group had no CPU quota left
                        FORK: the thread's id in its own pid namespace, 0 = it is in the host's */
    __u32 state;     /* OUT: task state as the kernel reports it; no bit of 0x7f: still runnable.
                        WAKING: BY_* where no thread woke it, 0 = one did, or who is not known
                        FORK: 1 = the child shares its creator's memory (thread, vfork)
                        EXIT: 0, or EXIT_KNOWN and the status that wait() gives of the process; EXIT_OF_AGENT */
    __u16 cpu;
    __u16 kind; /* SCHED_* */
    __u32 other_pid; /* process of other where known, 0 = not */
    __s32 holder;    /* OUT: thread that holds the GIL, as its process calls it; 0 = nobody; else HOLDER_UNKNOWN */
    __u64 resource;  /* OUT: resource_event.id of what it waits for; WAKING: of several descriptors, of what was ready first; 0 = none is known */
};

/* A thread that is not traced left a core for which a traced one waited. */
struct external_switch {
    __u64 ts;
    __u32 pid;
    __u32 tid; /* 0 = the idle thread */
    __u32 cpu;
    __u32 pad;
    char name[16]; /* its comm */
};

#define RESOURCE_NAME 128 /* bytes: more than of a unix socket's address without its family */

/* What a thread waits for behind a descriptor: see resources.h. */
struct resource_head {
    __u64 id;
    __u64 inode;
    __u32 device;
    __u32 mode;       /* i_mode */
    __u32 pid;        /* process that waits for it */
    __s32 descriptor; /* and as what it has it */
};

#define NO_FILE 1 /* of resource_event.anonymous: no file system has it; name: as in [eventpoll] */
#define CHILD 2   /* it is a process, a child of the one that waits; name: of its first thread */

/* A socket, a pipe, an anonymous file or a child process. */
struct resource_event {
    struct resource_head head;
    __u32 local[4]; /* addresses, as they are sent */
    __u32 remote[4];
    __u16 local_port;
    __u16 remote_port; /* as it is sent */
    __u16 family;      /* of addresses; 0 = it is no socket */
    __u16 type;
    __u8 state;        /* of TCP */
    __u8 named;        /* 1 = a unix socket has an address */
    __u16 anonymous;   /* NO_FILE, CHILD, or 0 */
    __u32 peer;        /* process at the other end of a unix socket, or the child; 0 = not known */
    char name[RESOURCE_NAME];
};

#define PATH_NAME 256 /* bytes of one name, with its zero */
#define PATH_SIZE 1024
#define PATH_WHOLE 0x80000000 /* of path_event.length: all names are there */

/* A file with a name. */
struct path_event {
    struct resource_head head;
    __u32 length; /* bytes of names, and PATH_WHOLE */
    char names[PATH_SIZE + 4]; /* its own, that of the directory, and so on up to the root, each with its zero byte */
};

/* The program that a process has become: its arguments as exec was given them, each with its zero byte. */
struct program_event {
    __u64 ts;    /* of its row in sched */
    __u32 pid;
    __u32 count; /* how many arguments there are */
    __u32 size;  /* bytes of `words` that are known; all of them: there may be more */
    char words[1004];
};

/* fault_event.kind */
#define FAULT_MINOR 0    /* a page was put in place */
#define FAULT_MAJOR 1    /* it was read from a file or from swap first */
#define FAULT_RESIDENT 2 /* the process's resident memory changed */

struct fault_event {
    __u64 ts;
    __u64 pid_tgid;
    __s64 size;   /* RESIDENT: bytes of that sort now */
    __u32 kind;   /* FAULT_* */
    __u16 sort;   /* RESIDENT: of files, anonymous, swapped out, shared: enum of include/linux/mm_types_task.h */
    __u16 foreign; /* RESIDENT: 1 = another program's thread changed it */
};

/* A block of malloc's that was sampled. */
struct block_event {
    __u64 ts;
    __u64 pid_tgid;
    __s64 level;         /* by so many bytes what is allocated changes, as estimated: below 0 where the block was freed */
    __u64 size;          /* of the block, as asked for */
    __u64 allocated_ts;  /* freed: when it was allocated */
    __u64 allocated_tid; /* and by whom */
};

/* Tensors that a native call gets or returns. */
#define TENSORS 8      /* so many of a call are read */
#define TENSOR_DIMS 5  /* as many as a TensorImpl holds in itself */
#define TENSOR_ABSENT 0xffff

struct tensor {
    __s64 sizes[TENSOR_DIMS];
    __s64 numel;
    __u16 data_type; /* c10::ScalarType */
    __u16 dims;      /* TENSOR_ABSENT: there is none, or it could not be read */
    __u32 pad;
};

struct tensors_event {
    __u64 ts; /* that of the call_event */
    __u64 pid_tgid;
    __u32 func;
    __u16 result; /* 1 = returned ones */
    __u16 count;
    __u64 pad;
    struct tensor tensors[TENSORS];
};

/* An object as it lies in memory, that an observed function is given or returns: rebuild/objects.c makes a struct value of it, as an
 * agent writes them (agent/agent.h), where VALUE_* is explained. */
#define OBJECT_NAME 4   /* object_event.what, beside VALUE_ARGUMENT to VALUE_RAISED: no value but the name of the argument `position` */
#define OBJECT_TYPE 128 /* bytes */
#define OBJECT_DATA 640 /* bytes: 160 characters of four */

/* Of a tensor, data has for either place of its object where PyTorch may keep the pointer what lies there from its
 * sizes_and_strides_ on, and then its sizes, where they are more than have room there. */
#define TENSOR_PLACES 2
#define TENSOR_PLACE(i) (24 - 8 * (i)) /* THPVariable */
#define TENSOR_SIZES 56                /* c10::TensorImpl: see probes/native.c */
#define TENSOR_INLINE 5
#define TENSOR_HEAD 112
#define TENSOR_DATA 320

struct object_event {
    __u64 ts; /* that of the call_event */
    __u64 pid_tgid;
    __s64 length;       /* as of a struct value, but of an int its digits */
    __u32 func;         /* function_event.id */
    __u16 position;
    __u16 type_length;  /* characters of type */
    __u8 what;
    __u8 kind;          /* VALUE_OTHER to VALUE_TENSOR */
    __u8 status;        /* VALUE_COMPLETE, VALUE_REDACTED or VALUE_UNREAD */
    __u8 dtype;
    __u8 width;         /* of a character of data; 0 = ASCII */
    __u8 type_width;    /* of one of type; 0 = ASCII or UTF-8 */
    __u16 pad;
    __u8 type[OBJECT_TYPE];
    __u8 data[OBJECT_DATA]; /* its beginning: of an int with more than 40 digits the last one, of a str characters, of a tensor as above, else as of a struct value */
};

#define ERROR_SIZE 1024

struct error_event {
    __u64 ts;
    __u64 pid_tgid;
    char text[ERROR_SIZE];
};

/* The stack of a thread that had a core when it was sampled, or came back to one: its frames are reported once, in stack_events. */
#define SAMPLE_NO_FRAMES 0 /* sample_event.stack: it runs no Python, and its native frames are not known */
#define SAMPLE_TORN 1      /* its frames were changing just then, or not in memory */
#define OPCODE_UNKNOWN 0xffff

/* sample_event.state: one more than the column has it */
#define SAMPLE_IN_UNKNOWN 0 /* the scheduling events say it */
#define SAMPLE_ON_CORE 1
#define SAMPLE_IN_QUEUE 2
#define SAMPLE_IN_GIL 3
#define SAMPLE_IN_BLOCKED 4

#define SYSCALL_UNKNOWN (-2)

struct sample_event {
    __u64 ts;
    __u64 pid_tgid;
    __u64 stack;  /* hash of the frames, or SAMPLE_* */
    __u64 off_ns; /* not 0: it came back to a core just then, after so long */
    __u64 task;   /* of asyncio, that ran: task_event.task; 0 = none did, or its name could not be read */
    __u16 cpu;
    __u16 opcode; /* of the innermost frame, as it is specialized */
    __u32 program; /* struct sampled's number */
    __u32 missed;  /* ticks of this core's clock that did not come before this one */
    __u32 state;   /* SAMPLE_IN_*: what it was in during off_ns */
    __s32 syscall; /* of one that was blocked: its system call; -1 = in none, as of a page fault; SYSCALL_UNKNOWN */
    __u32 pad;
    __u64 resource; /* and what it waited for there: resource_head.id; 0 = not known */
};

#define TASK_NAME 96 /* bytes of a name to read */

/* The name of a task, reported once. */
struct task_event {
    __u64 task;    /* hash of the rest */
    __u64 length;  /* characters; of a width of 0 the number N of Task-N, a name that nobody has asked for yet */
    __u32 width;   /* bytes of a character */
    __u32 pad;
    __u8 name[TASK_NAME]; /* its beginning; 0 from its end on */
};

struct sample_frame {
    __u64 code;     /* address of the code object, FRAME_* */
    __u32 identity; /* tells it from others that are at this address at other times: see record/cpython/lines.py */
    __s32 position; /* of the instruction: bytes from the first one; f_lasti up to 3.10 */
};

/* Of sample_frame.code: addresses of a program have 47 bits. */
#define FRAME_NATIVE (1ULL << 63)  /* a native function: unwind_rule.pc, and from bit 32 on the file's number; the other fields are 0 */
#define FRAME_ENTERED (1ULL << 62) /* the interpreter's C function was entered for it */

#define SAMPLE_FRAMES 1024 /* so many of a stack are read */
#define NATIVE_FRAMES 192  /* and so many native ones */
#define STACK_CHUNK 32     /* frames of a stack_event */

/* stack_event.native: the native frames */
#define NATIVE_NONE 0    /* were not looked for */
#define NATIVE_WHOLE 1   /* are all there */
#define NATIVE_CUT 2     /* there are more, outer ones */
#define NATIVE_BROKEN 3  /* there are more, outer ones: how to get to them is not known */

struct stack_event {
    __u64 stack;
    __u32 program; /* struct sampled's number */
    __u16 first;   /* of its frames: those of Python from the innermost on, then the native ones likewise */
    __u16 count;
    __u16 total;   /* frames of the stack */
    __u16 deep;    /* 1 = it has more of Python */
    __u32 native;  /* NATIVE_* */
    struct sample_frame frames[STACK_CHUNK];
};

/* index into the loss counters */
#define LOSS_CALL_RING 0         /* call ring full */
#define LOSS_FUNCTION_RING 1     /* function ring full: the name is asked for again at the next call */
#define LOSS_FUNCTION_MAP 2      /* function map full: calls carry function 0 */
#define LOSS_SCHED_RING 3        /* sched ring full */
#define LOSS_THREAD_MAP 4        /* thread map full: a thread's scheduling is not seen */
#define LOSS_STACK_DEPTH 5       /* stack deeper than one snapshot reads */
#define LOSS_ARGUMENT_RING 6     /* ring of tensors full: the call has no shapes */
#define LOSS_SCHED_MISSED 7      /* the kernel did not call the program: another one was running on that core. It counts these itself */
#define LOSS_SAMPLE_RING 8       /* ring of samples or of their frames full */
#define LOSS_SAMPLE_TORN 9       /* a sample's frames were changing just then, or not in memory: it has none */
#define LOSS_SAMPLE_NATIVE 10    /* a sample's native frames end where it is not known how to get to the caller */
#define LOSS_VALUE_RING 11       /* no room for a value: it is missing. The agent counts these itself */
#define LOSS_FAULT_RING 12       /* ring of page faults full */
#define LOSS_ALLOCATION_RING 13  /* no chunk for what an agent's allocators counted between two events. The agent counts these itself */
#define LOSS_BLOCK_RING 14       /* ring of sampled blocks full */
#define LOSS_BLOCK_MAP 15        /* too many sampled blocks at a time: that this one is freed is not seen */
#define LOSS_OPCODE_TABLE 16     /* instructions that were not counted. The agent counts these itself */
#define LOSS_SCHED_IN 17         /* the kernel reported no switch to a thread. User space finds these three by what follows (rebuild/states.c) */
#define LOSS_SCHED_OUT 18        /* nor one away from it */
#define LOSS_SCHED_WAKING 19     /* nor its wake-up */
#define LOSS_RESOURCE_RING 20    /* ring of resources full: it is named when it is next waited for */
#define LOSS_EXTERNAL_RING 21    /* ring of other programs' switches full: who had a core that was waited for is not known for so many */
#define LOSS_CLASSES 22

#endif
