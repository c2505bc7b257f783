/* SPDX-License-Identifier: GPL-2.0 */
/* What programs share that follow processes by the scheduler's tracepoints. Include it after vmlinux_min.h. */
#ifndef __PROCESS_BPF_H__
#define __PROCESS_BPF_H__

/* What found a buffer or a table full. */
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

/* At sched_process_fork: a thread is born into its own process. */
static __always_inline bool is_new_process(struct task_struct *child)
{
	return child->pid == child->tgid;
}

/* At sched_process_exit: do_exit() has counted this thread out before it comes there. */
static __always_inline bool was_last_thread(struct task_struct *task)
{
	return !task->signal->live.counter;
}

#endif
