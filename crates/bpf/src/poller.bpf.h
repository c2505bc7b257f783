/* SPDX-License-Identifier: GPL-2.0 */
/* Who polls a NAPI. Include it after compat.bpf.h. */
#ifndef __POLLER_BPF_H__
#define __POLLER_BPF_H__

/*
 * Whether the task polls by itself: in its own system call, and not in a
 * softirq that interrupted it. In the former case, @args, which the tracepoint
 * left on its caller's stack, are on the task's own stack, between its lowest
 * address and the user registers at its top. Softirqs run on a per-CPU stack
 * (CONFIG_SOFTIRQ_ON_OWN_STACK: all x86-64 and arm64 kernels except PREEMPT_RT,
 * where the programs are not loaded).
 *
 * __preempt_count would also show it, but kernels without CONFIG_KALLSYMS_ALL
 * do not export its address. NAPI_STATE_IN_BUSY_POLL is not suitable: the poll
 * that ends a busy loop runs without it, and after napi_complete_done() in a
 * softirq, a busy poller on another CPU may set it before the softirq reaches
 * its tracepoint.
 */
static __always_inline bool polls_by_itself(struct task_struct *task, void *args)
{
	struct pt_regs *user;

	/* Only ksoftirqd runs softirqs on its own stack. */
	if (task->flags & PF_KTHREAD)
		return false;
	user = (struct pt_regs *)bpf_task_pt_regs(task);
	return args >= task->stack && args < (void *)user && !stack_may_carry_softirqs(user);
}

#endif
