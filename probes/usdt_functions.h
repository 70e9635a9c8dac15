/* Which function a probe was fired for: an id for each, whose name is sent to user space when it is first seen.
 *
 * Strings are read once per function, in the traced thread, so that a function of a process that is gone a millisecond
 * later still has its name.
 */
#ifndef PYTRACE_USDT_FUNCTIONS_H
#define PYTRACE_USDT_FUNCTIONS_H

#include "calls.h"
#include "frames.h"
#include "usdt_matching.h"

BPF_RINGBUF_OUTPUT(functions, RING_PAGES);
LAYOUT(function_event);

struct key {
    __u64 file; /* address of the UTF-8 bytes */
    __u64 name;
    __u32 tgid;
    __u32 generation;
    __u32 line; /* first line as the probe gave it; or part of the code object's address | BY_CODE; or AT_RETURN */
    __u32 code; /* part of the code object's address where there may be others of that name on that line, else 0 */
};
#define BY_CODE 0x80000000u
#define AT_RETURN 0x7fffffffu

struct known {
    __u64 text; /* hash of file and names where their memory may be reused for other code, else 0; COMPILED_ANEW */
    __u32 id;
    __u32 flags; /* co_flags, OBSERVABLE */
};
BPF_TABLE("hash", struct key, struct known, known, 131072);
#define COMPILED_ANEW 2  /* its code may be compiled again and again, with other lines */
#define MODULE_OF_FILE 4 /* as a whole file's: then the functions in it may be other ones, too */

/* A BPF program can be preempted by another thread's on the same core: only one of them gets the draft. */
#define MINE(users) ({ __sync_fetch_and_add(&users, 1); *(volatile __u32 *)&users == 1; })
#define NO_MORE(users) __sync_fetch_and_add(&users, -1)
#define BARRIER asm volatile("" ::: "memory")

/* Direct-mapped, per CPU: what `known` answered last for this key. */
#define RECENT 1024
struct recent {
    struct key key;
    __u64 id_and_flags; /* 0 = the key is not to be trusted */
    __u32 writers;
    __u32 pad;
};
BPF_PERCPU_ARRAY(recent, struct recent, RECENT);

/* Buffers in which a function is described before it is sent: two for each core. User space sets their number. */
#define DRAFTS (2 * SETTINGS->cpus)
struct draft {
    __u32 users;
    __u32 introduced;
    struct function_event function;
};
BPF_ARRAY(drafts, struct draft, 1);

static __always_inline void read_names(struct function_event *function, __u64 file, __u64 name)
{
    __u64 *head = (__u64 *)function->file;
    int i;

#pragma unroll
    for (i = 0; i < 16; i++)
        head[i] = 0;
    head = (__u64 *)function->name;
#pragma unroll
    for (i = 0; i < 8; i++)
        head[i] = 0;
    head = (__u64 *)function->qualname;
#pragma unroll
    for (i = 0; i < 8; i++)
        head[i] = 0;
    bpf_probe_read_user_str(function->file, FILE_SIZE, (void *)file);
    bpf_probe_read_user_str(function->name, NAME_SIZE, (void *)name);
}

/* Code from exec() and module bodies are freed while others like them run on, so
 * their addresses come back for other code: such functions are known by their text. Lambdas and
 * generated functions are also where several of one name may begin on one line. */
static __always_inline int is_reusable(const struct function_event *function)
{
    return function->file[0] == '<' || function->name[0] == '<';
}

static __always_inline __u64 text_of_reusable(const struct function_event *function)
{
    const __u64 *file = (const __u64 *)function->file, *name = (const __u64 *)function->name, *qualname = (const __u64 *)function->qualname;
    __u64 hash = 14695981039346656037ULL;
    int i;

#pragma unroll
    for (i = 0; i < 8; i++)
        hash = ((hash ^ name[i]) * 1099511628211ULL ^ qualname[i]) * 1099511628211ULL;
#pragma unroll
    for (i = 0; i < 16; i++)
        hash = (hash ^ file[i]) * 1099511628211ULL;
    hash = (hash | 1) & ~(__u64)(COMPILED_ANEW | MODULE_OF_FILE);
    if (function->file[0] == '<')
        return hash | COMPILED_ANEW;
    return function->name[1] == 'm' || function->name[1] == 'c' ? hash | COMPILED_ANEW | MODULE_OF_FILE : hash; /* <module>, IPython's <cell ...> */
}

#define IS_ASCII (1 << 6) /* of a string's state */

static __always_inline void read_code(struct function_event *function, __u64 frame)
{
    __u64 code = code_of(FRAMES, frame);

    function->code = code;
    function->layer = LAYER_PYTHON;
    function->first_line = code ? TAKE(__s32, code + FRAMES->code_first_line) : -1;
    function->flags = code ? TAKE(__u32, code + FRAMES->code_flags) : 0;
    function->qualname[0] = 0;
    if (code && FRAMES->code_qualname != ABSENT) {
        __u64 text = TAKE(__u64, code + FRAMES->code_qualname);

        if (TAKE(__u32, text + SETTINGS->objects.string_state) & IS_ASCII) /* else user space reads it */
            bpf_probe_read_user_str(function->qualname, QUALNAME_SIZE, (void *)(text + FRAMES->string_data));
    }
}

static __always_inline struct draft *take_draft(__u32 *number)
{
    int i;

#pragma unroll
    for (i = 0; i < 2; i++) {
        struct draft *draft;

        *number = bpf_get_smp_processor_id() + i * SETTINGS->cpus;
        draft = drafts.lookup((int *)number);
        if (draft && MINE(draft->users))
            return draft;
        if (draft)
            NO_MORE(draft->users);
    }
    count_loss(LOSS_FUNCTION_RING);
    return 0;
}

/* Sends a draft. Its id; 0 = it could not be sent. */
static __always_inline __u32 send(struct draft *draft, __u32 number, __u64 ts, __u64 pid_tgid, __s32 line)
{
    struct function_event *function = &draft->function;

    function->ts = ts;
    function->pid_tgid = pid_tgid;
    function->line = line;
    function->id = (draft->introduced + 1) * DRAFTS + number;
    if (functions.ringbuf_output(function, sizeof(*function), BPF_RB_NO_WAKEUP)) {
        count_loss(LOSS_FUNCTION_RING);
        return 0;
    }
    draft->introduced++;
    return function->id;
}

/* The slow path: look in the big map, and send the function's name to user space where it is new. */
static __always_inline struct known introduce(__u64 ts, __u64 pid_tgid, struct key *key, __s32 line, __u64 frame)
{
    struct known answer = {};
    struct known *found = known.lookup(key);
    __u32 number;
    struct draft *draft;

    if (found && !found->text)
        return *found;
    draft = take_draft(&number);
    if (!draft)
        return answer;
    read_names(&draft->function, key->file, key->name);
    read_code(&draft->function, frame);
    if (is_reusable(&draft->function)) {
        answer.text = text_of_reusable(&draft->function);
        key->code = draft->function.code >> 4;
        found = known.lookup(key);
    }
    if (found && found->text == answer.text) {
        answer = *found;
    } else {
        answer.flags = draft->function.flags;
        draft->function.observable = SETTINGS->observes && may_be_observed(&draft->function);
        if (draft->function.observable)
            answer.flags |= OBSERVABLE;
        answer.id = send(draft, number, ts, pid_tgid, line);
        if (answer.id && known.update(key, &answer))
            count_loss(LOSS_FUNCTION_MAP);
    }
    NO_MORE(draft->users);
    return answer;
}

static __always_inline struct known identify(__u64 ts, __u64 pid_tgid, struct key *key, __s32 line, __u64 frame)
{
    struct known answer = {};
    __u32 slot = ((key->file >> 4) + (key->name >> 4) * 31 + key->line * 7) % RECENT;
    struct recent *hit = recent.lookup((int *)&slot);
    __u64 answered;

    if (!hit)
        return answer;
    answered = *(volatile __u64 *)&hit->id_and_flags;
    BARRIER;
    if (answered && hit->key.name == key->name && hit->key.file == key->file && hit->key.line == key->line &&
        hit->key.tgid == key->tgid && hit->key.generation == key->generation) {
        BARRIER;
        if (*(volatile __u64 *)&hit->id_and_flags == answered) {
            answer.id = answered;
            answer.flags = answered >> 32;
            return answer;
        }
    }
    answer = introduce(ts, pid_tgid, key, line, frame);
    if (answer.id && !answer.text) {
        if (MINE(hit->writers)) {
            hit->id_and_flags = 0;
            BARRIER;
            hit->key = *key;
            BARRIER;
            hit->id_and_flags = answer.id | (__u64)answer.flags << 32;
        }
        NO_MORE(hit->writers);
    }
    return answer;
}

#endif
