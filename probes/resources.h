/* What a resource is, and its name: what is behind a descriptor, a file, a socket, a pipe. Who includes this says with MAY_NAME(user, ring, size) who may have one named.
 *
 * A resource is named once, when a thread first waits for it; afterwards its id is enough, a hash of what tells it from all others:
 * file system and inode, a socket's ends, a file's name. So what a descriptor is used for later is another resource.
 */
#ifndef PYTRACE_RESOURCES_H
#define PYTRACE_RESOURCES_H

BPF_RINGBUF_OUTPUT(resources, RING_PAGES);
LAYOUT(resource_event);

BPF_RINGBUF_OUTPUT(paths, RING_PAGES);
LAYOUT(path_event);

/* Those that were named. One that is not here any more is named again. */
BPF_TABLE("lru_hash", __u64, __u8, named_resources, 16384);

#define TYPE_OF_FILE 0xf000 /* include/uapi/linux/stat.h: S_IFMT, S_IFSOCK, S_IFIFO */
#define TYPE_SOCKET 0xc000
#define TYPE_FIFO 0x1000
#define ANONYMOUS 0x09041934 /* include/uapi/linux/magic.h: ANON_INODE_FS_MAGIC */
#define TASK_COMM 16 /* include/linux/sched.h: TASK_COMM_LEN */
#define LISTENING 10 /* include/net/tcp_states.h */
#define UNIX 1
#define INET 2
#define INET6 10

/* include/net/sock.h: struct sock_common */
struct sock_ends {
    __u32 remote, local;
    __u32 hash;
    __u16 remote_port, local_port; /* the first as it is sent */
    __u16 family;
    __u8 state;
    __u8 reuse;
};

/* The address of a unix socket's other end, else its own. An abstract one begins with a zero. */
static __always_inline void name_unix(struct resource_event *event, __u64 sock)
{
    __u64 peer = KERNEL(__u64, sock + SETTINGS->unix_peer), address = 0;
    __u32 length;

    if (peer)
        address = KERNEL(__u64, peer + SETTINGS->unix_address);
    if (!address)
        address = KERNEL(__u64, sock + SETTINGS->unix_address);
    if (!address)
        return;
    length = KERNEL(__u32, address + SETTINGS->unix_length) - sizeof(__u16); /* without the family: 108 at most */
    length &= RESOURCE_NAME - 1;
    bpf_probe_read_kernel(event->name, length, (void *)(address + SETTINGS->unix_name + sizeof(__u16)));
    event->named = 1;
}

static __always_inline void tell_socket(struct resource_event *event, __u64 sock, struct sock_ends *ends)
{
    __u64 peer;

    event->family = ends->family;
    event->state = ends->state;
    event->type = KERNEL(__u16, sock + SETTINGS->sock_type);
    event->local_port = ends->local_port;
    event->remote_port = ends->remote_port;
    if (ends->family == INET6) {
        bpf_probe_read_kernel(event->local, sizeof(event->local), (void *)(sock + SETTINGS->sock_local6));
        bpf_probe_read_kernel(event->remote, sizeof(event->remote), (void *)(sock + SETTINGS->sock_remote6));
    } else if (ends->family == INET) {
        event->local[0] = ends->local;
        event->remote[0] = ends->remote;
    } else if (ends->family == UNIX && SETTINGS->unix_peer) {
        name_unix(event, sock);
        peer = KERNEL(__u64, sock + SETTINGS->sock_peer);
        if (peer && SETTINGS->peer_number)
            event->peer = KERNEL(__u32, peer + SETTINGS->peer_number);
    }
}

#define PATH_DEPTH 32

/* The names on the way from a file up to the root of its process's file systems, each with its zero byte, the file's own first. */
static __always_inline __u32 read_path(char *to, __u64 file)
{
    __u64 mount = KERNEL(__u64, file + SETTINGS->file_path), dentry = KERNEL(__u64, file + SETTINGS->file_path + 8);
    __u64 parent, name, above;
    __u32 at = 0;
    __s32 length;
    int i;

    mount -= SETTINGS->mount_itself;
    for (i = 0; i < PATH_DEPTH; i++) {
        if (dentry == KERNEL(__u64, mount + SETTINGS->mount_itself + SETTINGS->mount_root)) {
            above = KERNEL(__u64, mount + SETTINGS->mount_parent);
            if (above == mount)
                return at | PATH_WHOLE;
            dentry = KERNEL(__u64, mount + SETTINGS->mount_point);
            mount = above;
            continue;
        }
        parent = KERNEL(__u64, dentry + SETTINGS->dentry_parent);
        if (parent == dentry || !parent)
            return at | PATH_WHOLE;
        name = KERNEL(__u64, dentry + SETTINGS->dentry_name + 8);
        if (at >= PATH_SIZE - PATH_NAME)
            return at;
        length = bpf_probe_read_kernel_str(to + at, PATH_NAME, (void *)name);
        if (length <= 0)
            return at;
        at = (at + length) & (PATH_SIZE - 1); /* which changes nothing, and tells the verifier so */
        dentry = parent;
    }
    return at;
}

/* The id of the resource that is `file`, which is named if it was not yet, where `user` may take a place in the rings; 0: it is not known. */
static __always_inline __u64 resource_of(__u64 file, __u32 user, __u32 pid, __s32 descriptor)
{
    struct resource_head what = {.pid = pid, .descriptor = descriptor};
    __u64 inode, super, magic = 0, name = 0, sock = 0, id;
    struct resource_event *event;
    struct path_event *path;
    struct sock_ends ends = {};
    __u8 one = 1;

    inode = file ? KERNEL(__u64, file + SETTINGS->file_inode) : 0;
    if (!inode)
        return 0;
    what.mode = KERNEL(__u16, inode + SETTINGS->inode_mode);
    super = KERNEL(__u64, inode + SETTINGS->inode_super);
    what.inode = KERNEL(__u64, inode + SETTINGS->inode_number);
    what.device = KERNEL(__u32, super + SETTINGS->super_device);
    id = mixed(mixed(0, what.device), what.inode);
    if ((what.mode & TYPE_OF_FILE) == TYPE_SOCKET) {
        sock = KERNEL(__u64, KERNEL(__u64, file + SETTINGS->file_private) + SETTINGS->socket_sock);
        bpf_probe_read_kernel(&ends, sizeof(ends), (void *)sock);
        if (ends.family == INET || ends.family == INET6)
            id = mixed(mixed(mixed(id, (__u64)ends.remote << 32 | ends.local), (__u64)ends.remote_port << 16 | ends.local_port), ends.state == LISTENING);
    } else {
        magic = KERNEL(__u64, super + SETTINGS->super_magic);
        name = KERNEL(__u64, file + SETTINGS->file_path + 8) + SETTINGS->dentry_name;
        /* All anonymous files have one inode. A file that was renamed has another hash of its name. */
        id = mixed(id, magic == ANONYMOUS ? file : KERNEL(__u64, name));
    }
    id &= ~(1ULL << 63);
    if (named_resources.lookup(&id))
        return id;
    what.id = id;
    if (sock || magic == ANONYMOUS || (what.mode & TYPE_OF_FILE) == TYPE_FIFO) {
        event = MAY_NAME(user, RESOURCES, sizeof(*event)) ? resources.ringbuf_reserve(sizeof(*event)) : 0;
        if (!event) {
            count_loss(LOSS_RESOURCE_RING);
            return id;
        }
        __builtin_memset(event, 0, sizeof(*event));
        event->head = what;
        if (sock) {
            tell_socket(event, sock, &ends);
        } else {
            event->anonymous = magic == ANONYMOUS ? NO_FILE : 0;
            bpf_probe_read_kernel_str(event->name, sizeof(event->name), (void *)KERNEL(__u64, name + 8));
        }
        resources.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    } else {
        path = MAY_NAME(user, PATHS, sizeof(*path)) ? paths.ringbuf_reserve(sizeof(*path)) : 0;
        if (!path) {
            count_loss(LOSS_RESOURCE_RING);
            return id;
        }
        path->head = what;
        path->length = read_path(path->names, file);
        paths.ringbuf_submit(path, BPF_RB_NO_WAKEUP);
    }
    named_resources.update(&id, &one);
    return id;
}

/* The id of the resource that is the current process, for which its parent `pid` waits and which ends at `ts`: it is named each time. */
static __always_inline __u64 resource_of_child(__u32 user, __u32 pid, __u64 ts)
{
    __u32 child = bpf_get_current_pid_tgid() >> 32;
    struct resource_event *event = MAY_NAME(user, RESOURCES, sizeof(*event)) ? resources.ringbuf_reserve(sizeof(*event)) : 0;
    __u64 id = mixed(mixed(MIX, child), ts) & ~(1ULL << 63);

    if (!event) {
        count_loss(LOSS_RESOURCE_RING);
        return 0;
    }
    __builtin_memset(event, 0, sizeof(*event));
    event->head.id = id;
    event->head.pid = pid;
    event->head.descriptor = -1;
    event->anonymous = CHILD;
    event->peer = child;
    bpf_get_current_comm(event->name, TASK_COMM);
    resources.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    return id;
}

/* A task's file behind a descriptor; 0: there is none. */
static __always_inline __u64 file_behind(__u64 task, __u32 descriptor)
{
    __u64 table = KERNEL(__u64, KERNEL(__u64, task + SETTINGS->task_files) + SETTINGS->files_table);

    if (descriptor >= KERNEL(__u32, table + SETTINGS->table_size))
        return 0;
    return KERNEL(__u64, KERNEL(__u64, table + SETTINGS->table_files) + 8 * (__u64)descriptor);
}

#endif
