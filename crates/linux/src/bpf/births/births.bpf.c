// SPDX-License-Identifier: GPL-2.0
/*
 * Births of processes and of epolls, and deaths of processes, heard from the
 * scheduler's tracepoints and, where the kernel allows it, from the return of
 * do_epoll_create(). No system call tracepoint: any of them makes every
 * system call of the machine slower.
 */
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "births.h"

#define WATCHED_MAX 65536
#define EVENTS_BYTES (256 * 1024)

char LICENSE[] SEC("license") = "GPL";

/* The processes that are followed, by tgid; children are added here. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WATCHED_MAX);
	__type(key, __u32);
	__type(value, __u8);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENTS_BYTES);
} events SEC(".maps");

/* Events that found the buffer full, children that found the table full. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

static const __u8 yes = 1;

static __always_inline void count_lost(void)
{
	__u32 only = 0;
	__u64 *count = bpf_map_lookup_elem(&lost, &only);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline bool is_watched(__u32 tgid)
{
	return bpf_map_lookup_elem(&watched, &tgid);
}

static __always_inline void tell(__u32 kind, struct task_struct *leader, __u32 other)
{
	struct birth *birth = bpf_ringbuf_reserve(&events, sizeof(*birth), 0);

	if (!birth) {
		count_lost();
		return;
	}
	birth->kind = kind;
	birth->tgid = leader->tgid;
	birth->other = other;
	birth->pad = 0;
	birth->started_ns = leader->start_boottime;
	bpf_probe_read_kernel(birth->comm, sizeof(birth->comm), &leader->comm);
	bpf_ringbuf_submit(birth, 0);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(process_forked, struct task_struct *parent, struct task_struct *child)
{
	__u32 tgid = child->tgid;

	/* A thread is born into its own process. */
	if (child->pid != child->tgid || !is_watched(parent->tgid))
		return 0;
	if (bpf_map_update_elem(&watched, &tgid, &yes, BPF_ANY))
		count_lost();
	tell(BIRTH_CHILD, child, parent->tgid);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(process_executed, struct task_struct *task)
{
	if (is_watched(task->tgid))
		tell(BIRTH_EXEC, task->group_leader, 0);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(process_exited, struct task_struct *task)
{
	__u32 tgid = task->tgid;

	/* do_exit() has counted this thread out before it comes here. */
	if (!is_watched(tgid) || task->signal->live.counter)
		return 0;
	bpf_map_delete_elem(&watched, &tgid);
	tell(BIRTH_EXIT, task->group_leader, 0);
	return 0;
}

/* Loaded where the kernel admits programs at function returns. */
SEC("?fexit/do_epoll_create")
int BPF_PROG(epoll_created, int flags, int fd)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (fd >= 0 && is_watched(task->tgid))
		tell(BIRTH_EPOLL, task->group_leader, fd);
	return 0;
}
