/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Functions that determine who polls a NAPI, and which timeout the NAPI's timer has. Include this
 * file after compat.bpf.h.
 */
#ifndef __POLLER_BPF_H__
#define __POLLER_BPF_H__

/*
 * Returns whether the task polls in its own system call, rather than in a softirq that
 * interrupted it. In a system call, @args, which the tracepoint left on its caller's
 * stack, is on the task's own stack, between the stack's lowest address and the user
 * registers at its top. Softirqs run on a per-CPU stack (CONFIG_SOFTIRQ_ON_OWN_STACK: all
 * x86-64 and arm64 kernels except PREEMPT_RT, where the programs are not loaded).
 *
 * __preempt_count would also distinguish the two, but kernels without CONFIG_KALLSYMS_ALL
 * do not export its address. NAPI_STATE_IN_BUSY_POLL is not suitable: the poll
 * that ends a busy loop runs without it, and after napi_complete_done() in a
 * softirq, a busy poller on another CPU may set it before the softirq reaches
 * its tracepoint.
 */
static __always_inline bool polls_by_itself(struct task_struct *task, void *args)
{
	struct pt_regs *user;

	/*
	 * Among the kernel threads that poll, only ksoftirqd runs softirqs on
	 * its own stack.
	 */
	if (task->flags & PF_KTHREAD)
		return false;
	user = (struct pt_regs *)bpf_task_pt_regs(task);
	return args >= task->stack && args < (void *)user && !stack_may_carry_softirqs(user);
}

/*
 * Returns the NAPI to which this timer belongs, or 0 if it is not a NAPI's
 * timer. A NAPI's timer is recognised by the address of napi_watchdog().
 */
static __always_inline struct napi_struct *napi_of(struct hrtimer *timer, __u64 napi_watchdog)
{
	if (!napi_watchdog || (__u64)timer->function != napi_watchdog)
		return 0;
	return (void *)timer - bpf_core_field_offset(struct napi_struct, timer);
}

static __always_inline __u64 distance(__u64 a, __u64 b)
{
	return a > b ? a - b : b - a;
}

/* Returns the time until the timer expires, or 0 if it is overdue. */
static __always_inline __u64 left(struct hrtimer *timer, __u64 now)
{
	__u64 expires = timer->node.expires;

	return expires > now ? expires - now : 0;
}

/*
 * Returns whether a timer that is being armed uses the NAPI's
 * irq-suspend-timeout. The remaining time is slightly shorter than the timeout
 * with which the timer was armed, so the nearer of the two possible timeouts is
 * chosen. Equal timeouts cannot be distinguished.
 */
static __always_inline bool suspends(struct napi_struct *napi, struct hrtimer *timer, __u64 now)
{
	__u64 suspend = napi_irq_suspend_ns(napi), span = left(timer, now);

	return suspend && distance(span, suspend) < distance(span, napi_gro_flush_ns(napi));
}

#endif
