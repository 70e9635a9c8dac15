/* Samples the threads of a process from outside, with no more rights than its owner has: nobody is stopped, nothing is written there.
 *
 * User space opens one `struct remote_sampler` for each process and has it looked at a period apart. What the kernel says of a thread (its CPU
 * time, the system call that it is in) is read from /proc, its Python frames by process_vm_readv. Whatever is read there is the
 * process's to choose: addresses are tried, never followed in this process, and each walk has an end.
 */
#ifndef PYTRACE_OUTSIDE_H
#define PYTRACE_OUTSIDE_H

#include <stddef.h>
#include <stdint.h>

#define ABSENT INT32_MIN /* of an offset: that version has no such field */
#define FRAMES 1024      /* so many of a stack are read, as by samples.c */

/* sample.stack, as in events.h */
#define NO_FRAMES 0
#define TORN 1
#define FIRST_STACK 2
#define NO_OPCODE 0xffff

/* sample.state: one more than the column has it */
#define UNKNOWN 0
#define ON_CORE 1
#define QUEUED 2
#define GIL 3
#define BLOCKED 4

/* A process, and where its Python keeps what is read: offsets named as in record/cpython/layout.py. */
#define PLACE_FIELDS(FIELD) \
    FIELD(uint64_t, first)     /* address of the pointer to the first interpreter, as in samples.c */ \
    FIELD(uint64_t, code_type) /* address of PyCode_Type; 0 = unknown */ \
    FIELD(uint64_t, period_ns) \
    FIELD(uint64_t, ns_per_tick) /* of CPU time in `stat`; 0: `schedstat` says more */ \
    FIELD(int32_t, pid) \
    FIELD(int32_t, task)   /* descriptor of its folder /proc/PID/task */ \
    FIELD(int32_t, memory) /* of its memory: it ends with the program, as process_vm_readv does not */ \
    FIELD(int32_t, frame_size) /* bytes of a frame to read: all fields used here lie within them */ \
    FIELD(int32_t, interpreter_next) \
    FIELD(int32_t, interpreter_threads) \
    FIELD(int32_t, thread_status) \
    FIELD(int32_t, thread_next) \
    FIELD(int32_t, thread_pthread) \
    FIELD(int32_t, thread_native_id) \
    FIELD(int32_t, thread_frame) \
    FIELD(int32_t, thread_datastack) \
    FIELD(int32_t, cframe_frame) \
    FIELD(int32_t, frame_previous) \
    FIELD(int32_t, frame_code) \
    FIELD(int32_t, frame_running) \
    FIELD(int32_t, running_values) \
    FIELD(int32_t, frame_position) \
    FIELD(int32_t, frame_owner) \
    FIELD(int32_t, owner_shim) \
    FIELD(int32_t, code_file) \
    FIELD(int32_t, code_name) \
    FIELD(int32_t, code_first_line) \
    FIELD(int32_t, code_start) \
    FIELD(int32_t, code_bytes) \
    FIELD(int32_t, position_unit)  /* bytes */ \
    FIELD(int32_t, ends_with_shim) /* 1 = the outermost frame of a stack is an entry from C */ \
    FIELD(int32_t, string_hash)

#define SAMPLE_FIELDS(FIELD) \
    FIELD(uint64_t, ts) \
    FIELD(uint64_t, pid_tgid) \
    FIELD(uint64_t, stack)  /* hash of the frames, or NO_FRAMES, TORN */ \
    FIELD(uint64_t, off_ns) /* 0 it ran; else it was off the core for so long, up to ts */ \
    FIELD(uint16_t, opcode) \
    FIELD(uint16_t, state) \
    FIELD(uint32_t, is_new) /* 1 = its stack was read at the look that gives it */

#define STACK_FIELDS(FIELD) \
    FIELD(uint64_t, stack) \
    FIELD(uint32_t, first) /* of its frames, in what was given for them: innermost first */ \
    FIELD(uint16_t, count) \
    FIELD(uint16_t, deep) /* 1 = it has more */

#define FRAME_FIELDS(FIELD) \
    FIELD(uint64_t, code) \
    FIELD(uint32_t, identity) /* see record/cpython/lines.py */ \
    FIELD(int32_t, position)

/* Where a look puts what it finds, and how much of it there is. */
#define FOUND_FIELDS(FIELD) \
    FIELD(uint64_t, samples) \
    FIELD(uint64_t, stacks) \
    FIELD(uint64_t, frames) \
    FIELD(uint32_t, sample_room) \
    FIELD(uint32_t, stack_room) \
    FIELD(uint32_t, frame_room) \
    FIELD(uint32_t, sample_count) \
    FIELD(uint32_t, stack_count) \
    FIELD(uint32_t, frame_count) \
    FIELD(uint64_t, lost) /* there was no room for them */ \
    FIELD(uint64_t, torn) /* samples whose frames were changing */ \
    FIELD(uint64_t, deep) /* stacks with more than FRAMES frames */

#define MEMBER(type, name) type name;
struct place { PLACE_FIELDS(MEMBER) };
struct sample { SAMPLE_FIELDS(MEMBER) };
struct stack { STACK_FIELDS(MEMBER) };
struct frame { FRAME_FIELDS(MEMBER) };
struct found { FOUND_FIELDS(MEMBER) };

struct stack_read {
    uint64_t hash; /* or NO_FRAMES, TORN */
    uint16_t opcode;
    uint16_t deep;
    uint32_t count;
    struct frame frames[FRAMES];
};

#define STATE_BYTES 336 /* of a thread state to read: all fields used here lie within them */
#define HEAD 128        /* of a frame, and of a code object */

/* walk.c */
struct reader;
struct reader *reader_open(const struct place *place);
void reader_close(struct reader *reader);
int reader_take(struct reader *reader, uint64_t from, void *to, size_t size);
void reader_scatter(struct reader *reader, const uint64_t *from, void *to, size_t each, size_t count, uint8_t *taken);
uint64_t reader_innermost(struct reader *reader, const char *state);
void reader_stack(struct reader *reader, uint64_t state, uint64_t pthread, struct stack_read *read);
int reader_is_alive(struct reader *reader);

#endif
