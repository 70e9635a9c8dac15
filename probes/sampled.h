/* The processes that are sampled, and what the programs of samples.c share. */
#ifndef PYTRACE_SAMPLED_H
#define PYTRACE_SAMPLED_H

#include <uapi/linux/ptrace.h>
#include "common.h"
#include "processor.h"
#include "resource_settings.h"

struct settings {
    __u64 period; /* ns */
    __u64 off_period; /* of intervals off the core */
    __u32 thread_pointer; /* offsets in the kernel's struct task_struct: where its thread's own data is */
    __u32 task_start_time; /* ns, CLOCK_MONOTONIC */
    __u32 task_pid;
    __u32 task_tgid;
    __u32 task_mm;
    __u32 follow; /* forked children are sampled from their first instruction */
    __u32 states; /* samples say what threads off the core were in */
    __u32 task_run_delay; /* ns in the run queue since the thread began */
    __u32 task_state;
    __u32 shared; /* processes are of several users, who share the rings */
    __u64 samples_room; /* bytes of these */
    __u64 stacks_room;
    __u64 tasks_room;
    __u64 resources_room;
    __u64 paths_room;
    RESOURCE_SETTINGS
};
LAYOUT(settings);

/* A sampled process, as described by user space. */
struct sampled {
    __u64 main;      /* address of the pointer to the main interpreter */
    __u64 holder;    /* address of the pointer to the last holder of the GIL, a thread state; 0 = unknown */
    __u64 code_type; /* address of PyCode_Type; 0 = unknown */
    __u64 tasks;     /* address of the dict _asyncio._current_tasks; 0 = there is none, or it is not known yet */
    __u64 since;     /* sampled from then on */
    __u64 gil_start; /* addresses of its GIL, 0 = unknown */
    __u64 gil_end;
    __u32 layout;
    __u32 number; /* of the program: a process gets a new one with each exec */
    __u32 user;   /* who pays for it */
    __u32 pad;
};
BPF_HASH(processes, __u32, struct sampled, 16384);

#define OF_CURRENT(type, offset) (*(volatile type *)((char *)bpf_get_current_task_btf() + (offset))) /* of its struct task_struct, in a raw tracepoint */
#endif
