/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What kernels differ in, and what our programs make of it. Each function
 * names the release or the commit that made the difference.
 */
#ifndef __COMPAT_BPF_H__
#define __COMPAT_BPF_H__

/*
 * How long a NAPI's interrupt may stay masked; 0 before Linux 6.13, which
 * has no such timeout: "net: Add control functions for irq suspension".
 */
static __always_inline __u64 napi_irq_suspend_ns(struct napi_struct *napi)
{
	if (!bpf_core_field_exists(napi->irq_suspend_timeout))
		return 0;
	return BPF_CORE_READ(napi, irq_suspend_timeout);
}

/*
 * How long the NAPI's timer runs otherwise; 0 before Linux 6.13, where only
 * the device has the value: "net: napi: Make gro_flush_timeout per-NAPI".
 */
static __always_inline __u64 napi_gro_flush_ns(struct napi_struct *napi)
{
	if (!bpf_core_field_exists(napi->gro_flush_timeout))
		return 0;
	return BPF_CORE_READ(napi, gro_flush_timeout);
}

/* The NAPI an epoll polls; without CONFIG_NET_RX_BUSY_POLL there is none. */
static __always_inline __u32 epoll_napi_id(struct eventpoll *ep)
{
	return bpf_core_field_exists(ep->napi_id) ? BPF_CORE_READ(ep, napi_id) : 0;
}

/* Linux 6.9: "eventpoll: support busy poll per epoll instance". */
static __always_inline bool epoll_has_params(struct eventpoll *ep)
{
	return bpf_core_field_exists(ep->busy_poll_usecs) &&
	       bpf_core_field_exists(ep->busy_poll_budget) &&
	       bpf_core_field_exists(ep->prefer_busy_poll);
}

/* The NAPI of a socket's last packet, likewise. */
static __always_inline __u32 sock_napi_id(struct sock *sk)
{
	return bpf_core_field_exists(sk->sk_napi_id) ? sk->sk_napi_id : 0;
}

#endif
