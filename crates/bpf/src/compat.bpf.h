/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Accessors that hide differences between kernel versions. Each comment names
 * the release or commit that introduced the difference.
 */
#ifndef __COMPAT_BPF_H__
#define __COMPAT_BPF_H__

/*
 * Returns how long a NAPI's interrupt may stay masked while the application polls
 * (irq_suspend_timeout). Returns 0 before Linux 6.13, which introduced the timeout: "net: Add
 * control functions for irq suspension".
 */
static __always_inline __u64 napi_irq_suspend_ns(struct napi_struct *napi)
{
	if (!bpf_core_field_exists(napi->irq_suspend_timeout))
		return 0;
	return BPF_CORE_READ(napi, irq_suspend_timeout);
}

/*
 * Returns the number of consecutive empty polls after which the IRQ is enabled
 * again. Returns 0 before Linux 6.13, where only the device has the value:
 * "net: napi: Make napi_defer_hard_irqs per-NAPI".
 */
static __always_inline __u32 napi_defer_hard_irqs(struct napi_struct *napi)
{
	if (!bpf_core_field_exists(napi->defer_hard_irqs))
		return 0;
	return BPF_CORE_READ(napi, defer_hard_irqs);
}

/*
 * Returns the NAPI's gro_flush_timeout. Returns 0 before Linux 6.13, where only the device has the
 * value: "net: napi: Make gro_flush_timeout per-NAPI".
 */
static __always_inline __u64 napi_gro_flush_ns(struct napi_struct *napi)
{
	if (!bpf_core_field_exists(napi->gro_flush_timeout))
		return 0;
	return BPF_CORE_READ(napi, gro_flush_timeout);
}

/*
 * Returns whether the NAPI's timer is pending; its interrupt stays masked until
 * the timer expires. Linux 6.18 keeps state bits, the lowest of which is
 * HRTIMER_STATE_ENQUEUED; other kernels have a flag instead.
 */
static __always_inline bool napi_timer_runs(struct napi_struct *napi)
{
	if (bpf_core_field_exists(napi->timer.state))
		return napi->timer.state & 1;
	if (bpf_core_field_exists(napi->timer.is_queued))
		return napi->timer.is_queued;
	return false;
}

/* Returns the address of the field that holds the expiry time of a NAPI's
 * timer, or 0 if unknown. */
static __always_inline __u64 napi_timer_expires_at(struct napi_struct *napi)
{
	return bpf_core_field_exists(napi->timer.node.expires) ? (__u64)&napi->timer.node.expires : 0;
}

/*
 * Returns whether softirqs may now run on the task's own stack because the
 * interrupt that raised them came from user mode. x86 handles such an
 * interrupt, and the softirqs after it, on the task's stack, which is then
 * empty: Linux 5.8, arch/x86/include/asm/irq_stack.h. The saved user registers
 * distinguish this from a system call: orig_ax is a system-call number only in
 * a system call, and -1 otherwise. arm64 and other architectures always switch
 * stacks for softirqs.
 */
static __always_inline bool stack_may_carry_softirqs(struct pt_regs *user)
{
#if defined(__TARGET_ARCH_x86)
	return (long)user->orig_ax < 0;
#else
	return false;
#endif
}

/* Returns the id of the NAPI that an epoll polls, or 0 without
 * CONFIG_NET_RX_BUSY_POLL. */
static __always_inline __u32 epoll_napi_id(struct eventpoll *ep)
{
	return bpf_core_field_exists(ep->napi_id) ? BPF_CORE_READ(ep, napi_id) : 0;
}

/* Returns whether epolls have busy-poll parameters. Linux 6.9: "eventpoll:
 * support busy poll per epoll instance". */
static __always_inline bool epoll_has_params(struct eventpoll *ep)
{
	return bpf_core_field_exists(ep->busy_poll_usecs) &&
	       bpf_core_field_exists(ep->busy_poll_budget) &&
	       bpf_core_field_exists(ep->prefer_busy_poll);
}

/*
 * Returns whether the epoll waits for events without polling a NAPI. No kernel
 * release has this feature; the patch is in kernel/epoll-event-busy-loop/.
 */
static __always_inline bool epoll_events_only(struct eventpoll *ep)
{
	return bpf_core_field_exists(ep->events_only) && BPF_CORE_READ(ep, events_only);
}

/* Returns the busy-poll budget of a socket. Linux 5.11: "net: Add SO_BUSY_POLL_BUDGET socket
 * option". */
static __always_inline __u16 sock_busy_poll_budget(struct sock *sk)
{
	return bpf_core_field_exists(sk->sk_busy_poll_budget) ? sk->sk_busy_poll_budget : 0;
}

/*
 * Reads sixteen bytes at any kernel address, by means of a type of that size
 * that every kernel has. Each read is a plain load, which returns 0 for
 * unmapped memory; bpf_probe_read_kernel() would be a function call. Linux 6.2:
 * "bpf: Add a kfunc for generic type cast".
 */
#define sixteen_bytes(address) bpf_core_cast((void *)(address), struct in6_addr)

/*
 * Returns whether this is an MPTCP subflow (Linux 5.6); always false without
 * CONFIG_MPTCP.
 */
static __always_inline bool is_mptcp(struct tcp_sock *tcp)
{
	return bpf_core_field_exists(tcp->is_mptcp) && tcp->is_mptcp;
}

/*
 * Returns the id of the NAPI that delivered a socket's last packet, or 0
 * without CONFIG_NET_RX_BUSY_POLL.
 */
static __always_inline __u32 sock_napi_id(struct sock *sk)
{
	return bpf_core_field_exists(sk->sk_napi_id) ? sk->sk_napi_id : 0;
}

#endif
