// SPDX-License-Identifier: GPL-2.0
/*
 * Measures the run time of some processes and of all processes that they fork,
 * including processes that have exited.
 *
 * For a live process, user space reads the process's CPU clock. When a
 * process's last thread exits, the process's run time so far is added to the
 * sum of exited members. That value is not final: the exit continues after the
 * tracepoint, and a process that was never scheduled out has no run time yet.
 * The rest is added when the kernel frees the process, after its parent has
 * waited for it and an RCU grace period has passed.
 */
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "../process.bpf.h"
#include "family.h"

#define MEMBERS_MAX 65536

char LICENSE[] SEC("license") = "GPL";

/* The members of the family, by tgid. softirqs.bpf.c uses the same map. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MEMBERS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct family_total);
} ended SEC(".maps");

/* The result of the iterator. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct family_total);
} alive SEC(".maps");

/*
 * The run time already added for members that have exited but are not freed
 * yet, by the address of their main thread.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MEMBERS_MAX);
	__type(key, __u64);
	__type(value, __u64);
} exiting SEC(".maps");

SEC("tp_btf/sched_process_fork")
int BPF_PROG(family_forks, struct task_struct *parent, struct task_struct *child)
{
	__u32 tgid = parent->tgid, followed = FAMILY_FOLLOWED, only = 0, *member;
	struct family_total *total;

	if (!is_new_process(child))
		return 0;
	member = bpf_map_lookup_elem(&processes, &tgid);
	if (!member || *member != FAMILY_FOLLOWED)
		return 0;
	tgid = child->tgid;
	if (bpf_map_update_elem(&processes, &tgid, &followed, BPF_ANY))
		count_lost();
	total = bpf_map_lookup_elem(&ended, &only);
	if (total)
		__sync_fetch_and_add(&total->forks, 1);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(family_exits, struct task_struct *task)
{
	struct task_struct *leader = task->group_leader;
	struct signal_struct *signal = task->signal;
	__u32 tgid = task->tgid, only = 0;
	__u64 key = (__u64)leader, run_ns, switches;
	struct family_total *total;

	if (!was_last_thread(task) || !bpf_map_lookup_elem(&processes, &tgid))
		return 0;
	run_ns = signal->sum_sched_runtime + leader->se.sum_exec_runtime;
	switches = signal->nvcsw + signal->nivcsw + leader->nvcsw + leader->nivcsw;
	if (leader != task) {
		run_ns += task->se.sum_exec_runtime;
		switches += task->nvcsw + task->nivcsw;
	}
	total = bpf_map_lookup_elem(&ended, &only);
	if (!total)
		return 0;
	if (bpf_map_update_elem(&exiting, &key, &run_ns, BPF_ANY))
		count_lost();
	bpf_map_delete_elem(&processes, &tgid);
	__sync_fetch_and_add(&total->run_ns, run_ns);
	__sync_fetch_and_add(&total->switches, switches);
	__sync_fetch_and_add(&total->exits, 1);
	return 0;
}

/* All threads of the process have been released, so its run time is final. */
SEC("tp_btf/sched_process_free")
int BPF_PROG(family_freed, struct task_struct *task)
{
	__u64 key = (__u64)task, *known, run_ns;
	struct family_total *total;
	__u32 only = 0;

	known = bpf_map_lookup_elem(&exiting, &key);
	if (!known)
		return 0;
	run_ns = task->signal->sum_sched_runtime;
	total = bpf_map_lookup_elem(&ended, &only);
	if (total && run_ns > *known)
		__sync_fetch_and_add(&total->run_ns, run_ns - *known);
	bpf_map_delete_elem(&exiting, &key);
	return 0;
}

/* Sums the context switches and run delays of live members. */
SEC("iter/task")
int family_lives(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct family_total *found;
	__u32 tgid, only = 0;

	if (!task)
		return 0;
	tgid = task->tgid;
	if (!bpf_map_lookup_elem(&processes, &tgid))
		return 0;
	found = bpf_map_lookup_elem(&alive, &only);
	if (!found)
		return 0;
	found->switches += task->nvcsw + task->nivcsw;
	if (bpf_core_field_exists(task->sched_info.run_delay))
		found->run_delay_ns += task->sched_info.run_delay;
	if (task == task->group_leader)
		found->switches += task->signal->nvcsw + task->signal->nivcsw;
	return 0;
}
