// SPDX-License-Identifier: GPL-2.0
/*
 * Reads a process's epolls and sockets in the kernel, with one system call per
 * page of records instead of several system calls per descriptor.
 */
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "../compat.bpf.h"
#include "epolls.h"

/*
 * Puts these types into the object's BTF, which a test compares with the Rust
 * structures.
 */
const struct epoll_record *described_epoll_record __attribute__((unused));
const struct socket_record *described_socket_record __attribute__((unused));

char LICENSE[] SEC("license") = "GPL";

static const char EPOLL_NAME[] = "[eventpoll]";

/*
 * Returns whether a file is an epoll, by the name of its anonymous inode: only
 * the kernel creates files on anon_inodefs, and only epolls have this name.
 * Comparing the file operations would be more reliable, but their address is a
 * data symbol, and kernels without CONFIG_KALLSYMS_ALL do not export it.
 */
static __always_inline bool is_epoll(struct file *file)
{
	char name[sizeof(EPOLL_NAME)];

	if (file->f_inode->i_sb->s_magic != ANON_INODE_FS_MAGIC)
		return false;
	if (bpf_probe_read_kernel_str(name, sizeof(name), file->f_path.dentry->d_name.name) !=
	    sizeof(EPOLL_NAME))
		return false;
	return !bpf_strncmp(name, sizeof(name), EPOLL_NAME);
}

SEC("iter/task_file")
int epolls_of(struct bpf_iter__task_file *ctx)
{
	struct epoll_record record = {};
	struct file *file = ctx->file;
	struct eventpoll *ep;

	if (!file || !ctx->task || !is_epoll(file))
		return 0;

	ep = file->private_data;
	record.eventpoll = (__u64)ep;
	record.fd = ctx->fd;
	record.napi_id = epoll_napi_id(ep);
	if (epoll_has_params(ep)) {
		record.known = EPOLL_HAS_PARAMS;
		if (epoll_events_only(ep))
			record.known |= EPOLL_EVENTS_ONLY;
		record.busy_poll_usecs = BPF_CORE_READ(ep, busy_poll_usecs);
		record.busy_poll_budget = BPF_CORE_READ(ep, busy_poll_budget);
		record.prefer_busy_poll = BPF_CORE_READ(ep, prefer_busy_poll);
	}
	/* The result can be ignored: if the page is full, the kernel retries
	 * with an empty one. */
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

SEC("iter/task_file")
int sockets_of(struct bpf_iter__task_file *ctx)
{
	struct socket_record record = {};
	struct file *file = ctx->file;
	struct socket *socket;
	struct sock *sk;

	if (!file || !ctx->task || (file->f_inode->i_mode & S_IFMT) != S_IFSOCK)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = socket->sk;
	if (!sk)
		return 0;

	record.inode = file->f_inode->i_ino;
	record.fd = ctx->fd;
	record.family = sk->__sk_common.skc_family;
	record.napi_id = sock_napi_id(sk);
	record.busy_poll_budget = sock_busy_poll_budget(sk);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}
