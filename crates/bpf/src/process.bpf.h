/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Functions for programs that follow processes with the scheduler's
 * tracepoints. Include this file after vmlinux_min.h.
 */
#ifndef __PROCESS_BPF_H__
#define __PROCESS_BPF_H__

/* Events that were lost because a buffer or a map was full. */
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
 * At sched_process_fork: returns whether the child is a new process rather than
 * a thread.
 */
static __always_inline bool is_new_process(struct task_struct *child)
{
	return child->pid == child->tgid;
}

/*
 * At sched_process_exit: returns whether the task was the process's last thread.
 * do_exit() has already decremented the count of live threads.
 */
static __always_inline bool was_last_thread(struct task_struct *task)
{
	return !task->signal->live.counter;
}

#endif
