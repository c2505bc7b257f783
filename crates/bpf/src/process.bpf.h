/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Functions for programs that follow processes by means of the scheduler's
 * tracepoints. Include this file after vmlinux_min.h.
 */
#ifndef __PROCESS_BPF_H__
#define __PROCESS_BPF_H__

/* The number of events that were lost because a buffer or a map was full. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

static __always_inline void count_lost(void)
{
	__u32 only = 0;
	__u64 *count = bpf_map_lookup_elem(&lost, &only);

	if (count)
		__sync_fetch_and_add(count, 1);
}

/*
 * Returns whether the child is a new process rather than a thread. For use at
 * sched_process_fork.
 */
static __always_inline bool is_new_process(struct task_struct *child)
{
	return child->pid == child->tgid;
}

/*
 * Returns whether the task was the last thread of its process. For use at sched_process_exit, where
 * do_exit() has already decremented the count of live threads.
 */
static __always_inline bool was_last_thread(struct task_struct *task)
{
	return !task->signal->live.counter;
}

#endif
