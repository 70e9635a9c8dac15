/* What a thread waits for, where that is behind a descriptor: a file, a socket, a pipe.
 *
 * A resource is named once, when a thread first waits for it; afterwards its id is enough, a hash of what tells it from all others:
 * file system and inode, a socket's ends, a file's name. So what a descriptor is used for later is another resource.
 */
#ifndef PYTRACE_RESOURCES_H
#define PYTRACE_RESOURCES_H

/* settings.waits_on[number of a system call]: what its arguments say of what it waits for */
#define ON_NOTHING 0
#define ON_DESCRIPTOR 1 /* the first argument is the descriptor */
#define ON_EPOLL 2      /* the same: an epoll instance, of which the descriptor that became ready is meant */
#define ON_POLL 3       /* struct pollfds, and how many */
#define ON_SELECT 4     /* one more than the greatest descriptor, and three fd_sets */

BPF_RINGBUF_OUTPUT(resources, RING_PAGES);
LAYOUT(resource_event);

BPF_RINGBUF_OUTPUT(paths, RING_PAGES);
LAYOUT(path_event);

/* Those that were named. One that is not here any more is named again. */
BPF_TABLE("lru_hash", __u64, __u8, named_resources, 16384);

/* thread id -> its epoll instance in the kernel, while it waits for that */
BPF_TABLE("lru_hash", __u32, __u64, epolls, 4096);

#define TYPE_OF_FILE 0xf000 /* include/uapi/linux/stat.h: S_IFMT, S_IFSOCK, S_IFIFO */
#define TYPE_SOCKET 0xc000
#define TYPE_FIFO 0x1000
#define ANONYMOUS 0x09041934 /* include/uapi/linux/magic.h: ANON_INODE_FS_MAGIC */
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

#define AT(type, address) ({ type there = 0; bpf_probe_read_kernel(&there, sizeof(there), (void *)(address)); there; })

static __always_inline __u64 mixed(__u64 hash, __u64 value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
    return hash ^ hash >> 29;
}

/* The address of a unix socket's other end, else its own. An abstract one begins with a zero. */
static __always_inline void name_unix(struct resource_event *event, __u64 sock)
{
    __u64 peer = AT(__u64, sock + SETTINGS->unix_peer), address = 0;
    __u32 length;

    if (peer)
        address = AT(__u64, peer + SETTINGS->unix_address);
    if (!address)
        address = AT(__u64, sock + SETTINGS->unix_address);
    if (!address)
        return;
    length = AT(__u32, address + SETTINGS->unix_length) - sizeof(__u16); /* without the family: 108 at most */
    length &= RESOURCE_NAME - 1;
    bpf_probe_read_kernel(event->name, length, (void *)(address + SETTINGS->unix_name + sizeof(__u16)));
    event->named = 1;
}

static __always_inline void tell_socket(struct resource_event *event, __u64 sock, struct sock_ends *ends)
{
    __u64 peer;

    event->family = ends->family;
    event->state = ends->state;
    event->type = AT(__u16, sock + SETTINGS->sock_type);
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
        peer = AT(__u64, sock + SETTINGS->sock_peer);
        if (peer && SETTINGS->pid_numbers)
            event->peer = AT(__u32, peer + SETTINGS->pid_numbers);
    }
}

#define PATH_DEPTH 32

/* The names on the way from a file up to the root of its process's file systems, each with its zero byte, the file's own first. */
static __always_inline __u32 read_path(char *to, __u64 file)
{
    __u64 mount = AT(__u64, file + SETTINGS->file_path), dentry = AT(__u64, file + SETTINGS->file_path + 8);
    __u64 parent, name, above;
    __u32 at = 0;
    __s32 length;
    int i;

    mount -= SETTINGS->mount_itself;
    for (i = 0; i < PATH_DEPTH; i++) {
        if (dentry == AT(__u64, mount + SETTINGS->mount_itself + SETTINGS->mount_root)) {
            above = AT(__u64, mount + SETTINGS->mount_parent);
            if (above == mount)
                return at | PATH_WHOLE;
            dentry = AT(__u64, mount + SETTINGS->mount_point);
            mount = above;
            continue;
        }
        parent = AT(__u64, dentry + SETTINGS->dentry_parent);
        if (parent == dentry || !parent)
            return at | PATH_WHOLE;
        name = AT(__u64, dentry + SETTINGS->dentry_name + 8);
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

/* The id of the resource that is `file`, which is named if it was not yet; 0: it is not known. */
static __always_inline __u64 resource_of(__u64 file, __u32 pid, __s32 descriptor)
{
    struct resource_head what = {.pid = pid, .descriptor = descriptor};
    __u64 inode, super, magic = 0, name = 0, sock = 0, id;
    struct resource_event *event;
    struct path_event *path;
    struct sock_ends ends = {};
    __u8 one = 1;

    inode = file ? AT(__u64, file + SETTINGS->file_inode) : 0;
    if (!inode)
        return 0;
    what.mode = AT(__u16, inode + SETTINGS->inode_mode);
    super = AT(__u64, inode + SETTINGS->inode_super);
    what.inode = AT(__u64, inode + SETTINGS->inode_number);
    what.device = AT(__u32, super + SETTINGS->super_device);
    id = mixed(mixed(0, what.device), what.inode);
    if ((what.mode & TYPE_OF_FILE) == TYPE_SOCKET) {
        sock = AT(__u64, AT(__u64, file + SETTINGS->file_private) + SETTINGS->socket_sock);
        bpf_probe_read_kernel(&ends, sizeof(ends), (void *)sock);
        if (ends.family == INET || ends.family == INET6)
            id = mixed(mixed(mixed(id, (__u64)ends.remote << 32 | ends.local), (__u64)ends.remote_port << 16 | ends.local_port), ends.state == LISTENING);
    } else {
        magic = AT(__u64, super + SETTINGS->super_magic);
        name = AT(__u64, file + SETTINGS->file_path + 8) + SETTINGS->dentry_name;
        /* All anonymous files have one inode. A file that was renamed has another hash of its name. */
        id = mixed(id, magic == ANONYMOUS ? file : AT(__u64, name));
    }
    id &= ~(1ULL << 63);
    if (named_resources.lookup(&id))
        return id;
    what.id = id;
    if (sock || magic == ANONYMOUS || (what.mode & TYPE_OF_FILE) == TYPE_FIFO) {
        event = resources.ringbuf_reserve(sizeof(*event));
        if (!event) {
            count_loss(LOSS_RESOURCE_RING);
            return id;
        }
        __builtin_memset(event, 0, sizeof(*event));
        event->head = what;
        if (sock) {
            tell_socket(event, sock, &ends);
        } else {
            event->anonymous = magic == ANONYMOUS;
            bpf_probe_read_kernel_str(event->name, sizeof(event->name), (void *)AT(__u64, name + 8));
        }
        resources.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    } else {
        path = paths.ringbuf_reserve(sizeof(*path));
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

/* The current process's file behind a descriptor; 0: there is none. */
static __always_inline __u64 file_behind(__u64 task, __u32 descriptor)
{
    __u64 table = AT(__u64, AT(__u64, task + SETTINGS->task_files) + SETTINGS->files_table);

    if (descriptor >= AT(__u32, table + SETTINGS->table_size))
        return 0;
    return AT(__u64, AT(__u64, table + SETTINGS->table_files) + 8 * (__u64)descriptor);
}

#define SET_WORDS 16 /* of 64 descriptors */

/* The only descriptor in the sets that select() was given; -1: there are several, or greater ones. */
static __always_inline __s32 only_selected(__u64 greatest, struct pt_regs *regs)
{
    __u64 reading = AT(__u64, &regs->REGS_SECOND), writing = AT(__u64, &regs->REGS_THIRD), failing = AT(__u64, &regs->REGS_FOURTH), word;
    __u32 descriptor = greatest - 1, i;

    if (descriptor >= 64 * SET_WORDS)
        return -1;
    /* It is in one of them: so it is the only one where no smaller one is there. */
    for (i = 0; i < SET_WORDS; i++) {
        word = TAKE(__u64, reading + 8 * i) | TAKE(__u64, writing + 8 * i) | TAKE(__u64, failing + 8 * i);
        if (i == descriptor / 64)
            return word & ((1ULL << descriptor % 64) - 1) ? -1 : descriptor;
        if (word)
            return -1;
    }
    return -1;
}

/* What the current thread waits for, that leaves its core in system call `nr` with `first` as its first argument; 0: that is not known. */
static __always_inline __u64 resource_waited_for(__u32 pid, __u32 tid, __u64 nr, __u64 first, struct pt_regs *regs)
{
    __u64 task, file, instance;
    __s32 descriptor = first;
    __u8 on;

    if (!SETTINGS->resources_known || nr >= WAITS_ON)
        return 0;
    on = SETTINGS->waits_on[nr];
    if (on == ON_NOTHING)
        return 0;
    if (on == ON_POLL)
        descriptor = AT(__u64, &regs->REGS_SECOND) == 1 ? TAKE(__s32, first) : -1;
    else if (on == ON_SELECT)
        descriptor = only_selected(first, regs);
    if (descriptor < 0)
        return 0;
    task = bpf_get_current_task();
    file = file_behind(task, descriptor);
    if (on == ON_EPOLL && SETTINGS->epoll_ready) {
        instance = file ? AT(__u64, file + SETTINGS->file_private) : 0;
        epolls.update(&tid, &instance);
    }
    return resource_of(file, pid, descriptor);
}

/* What thread `tid` finds that waits for an epoll instance and is woken now: what was first found to be ready; 0: nothing, or it waits for none. */
static __always_inline __u64 resource_ready(__u32 pid, __u32 tid)
{
    __u64 *instance, ready, item;

    if (!SETTINGS->resources_known || !SETTINGS->epoll_ready)
        return 0;
    instance = epolls.lookup(&tid);
    if (!instance || !*instance)
        return 0;
    ready = *instance + SETTINGS->epoll_ready;
    epolls.delete(&tid);
    item = AT(__u64, ready);
    if (!item || item == ready)
        return 0;
    item -= SETTINGS->item_link;
    return resource_of(AT(__u64, item + SETTINGS->item_file), pid, AT(__s32, item + SETTINGS->item_file + 8));
}

#endif
