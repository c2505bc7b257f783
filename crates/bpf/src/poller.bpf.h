/* SPDX-License-Identifier: GPL-2.0 */
/* Who polls a NAPI. Include it after compat.bpf.h. */
#ifndef __POLLER_BPF_H__
#define __POLLER_BPF_H__

/*
 * Whether the task polls by itself: in a system call of its, and not in a
 * softirq that has interrupted it. @args, which the tracepoint left on the
 * stack of its caller, then lie on the task's own stack, between its lowest
 * address and the user's registers at its top. Softirqs run on a stack of the
 * CPU (CONFIG_SOFTIRQ_ON_OWN_STACK; all of x86-64 and arm64 but for
 * PREEMPT_RT, where we do not load).
 *
 * __preempt_count would show it, too, but kernels without CONFIG_KALLSYMS_ALL do
 * not say where it is. NAPI_STATE_IN_BUSY_POLL would not do: the poll that
 * ends a busy loop runs without it, and after napi_complete_done() in a
 * softirq a busy poller on another CPU may set it before the softirq reaches
 * its tracepoint.
 */
static __always_inline bool polls_by_itself(struct task_struct *task, void *args)
{
	struct pt_regs *user;

	/* ksoftirqd is the one whose softirqs run on its own stack. */
	if (task->flags & PF_KTHREAD)
		return false;
	user = (struct pt_regs *)bpf_task_pt_regs(task);
	return args >= task->stack && args < (void *)user && !stack_may_carry_softirqs(user);
}

#endif
