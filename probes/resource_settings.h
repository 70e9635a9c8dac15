/* Where the kernel keeps what resources.h reads, and what system calls wait for: fields of struct settings, by record/scheduling/resources.py. */
#ifndef PYTRACE_RESOURCE_SETTINGS_H
#define PYTRACE_RESOURCE_SETTINGS_H

#define WAITS_ON 512 /* system calls with greater numbers wait for nothing that is known */

#define RESOURCE_SETTINGS \
    __u32 resources_known; /* 0: none of the offsets below is */ \
    __u32 task_files, files_table, table_size, table_files; \
    __u32 file_inode, file_path, file_private; \
    __u32 inode_mode, inode_super, inode_number, super_device, super_magic; \
    __u32 dentry_parent, dentry_name, mount_root, mount_itself, mount_parent, mount_point; \
    __u32 socket_sock, sock_type, sock_peer, sock_local6, sock_remote6; \
    __u32 peer_number; /* 0: which process is at the other end of a unix socket is not known */ \
    __u32 unix_peer, unix_address, unix_length, unix_name; /* 0: the names of unix sockets are not known */ \
    __u32 epoll_ready, item_link, item_file; /* 0: nor what epoll found */ \
    __u32 sock_queue, sock_accepted, sock_shut; /* 0: nor what poll and select found of several */ \
    __u32 pipe_head, pipe_tail, pipe_writers; \
    __u8 waits_on[WAITS_ON]; /* by number of a system call: ON_* of descriptors.h */

#endif
