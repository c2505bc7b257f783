/* SPDX-License-Identifier: GPL-2.0 */
/* Determines who polls a NAPI, and the span of its timer. Include it after compat.bpf.h. */
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
 * __preempt_count would also distinguish the two, but kernels without CONFIG_KALLSYMS_ALL
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

/* The NAPI of this timer, by the address of napi_watchdog(); 0 for all other timers. */
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

/* The remaining time of the timer. */
static __always_inline __u64 left(struct hrtimer *timer, __u64 now)
{
	__u64 expires = timer->node.expires;

	return expires > now ? expires - now : 0;
}

/*
 * Whether a timer that is being armed uses the NAPI's irq-suspend-timeout. The
 * remaining time is slightly shorter than the setting it came from, so it is
 * compared with both timeouts and the nearer one is chosen. Equal timeouts cannot
 * be told apart.
 */
static __always_inline bool suspends(struct napi_struct *napi, struct hrtimer *timer, __u64 now)
{
	__u64 suspend = napi_irq_suspend_ns(napi), span = left(timer, now);

	return suspend && distance(span, suspend) < distance(span, napi_gro_flush_ns(napi));
}

#endif
