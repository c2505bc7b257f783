/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * How a program says what the packets of a socket, or its own, shall be good at.
 *
 * The interface is that of "Kernel NET policy" (2016) on a kernel without it: netpolicy answers for the kernel in
 * the cgroups where `netpolicy sockets enable` was called. Elsewhere setsockopt() and getsockopt() fail with
 * ENOPROTOOPT and prctl() with EINVAL, as for any number that the kernel does not know; a program loses nothing by
 * asking. docs/explanation/interface-2016.md of netpolicy describes all of it.
 */
#ifndef NETPOLICY_H
#define NETPOLICY_H

/*
 * setsockopt(socket, SOL_SOCKET, SO_NETPOLICY, &policy, sizeof(int)), and getsockopt() likewise.
 *
 * EINVAL for a value that is none of the below, or shorter than an int; EPERM for one that this user may not choose.
 */
#define SO_NETPOLICY 0x4e50

/*
 * prctl(PR_SET_NETPOLICY, policy, 0, 0, 0) for the calling process, its children to come and the sockets that they
 * make; prctl(PR_GET_NETPOLICY, 0, 0, 0, 0). Both return the policy that is in force then, with NETPOLICY_IS_SET added,
 * so that the answer is never 0.
 */
#define PR_SET_NETPOLICY 0x4e504f4c
#define PR_GET_NETPOLICY 0x4e504f4d
#define NETPOLICY_IS_SET 0x100

/* The numbers of 2016, and one more. */
enum netpolicy_name {
	NET_POLICY_NONE = 0,	/* The kernel's default. */
	NET_POLICY_CPU = 1,	/* Throughput at the least CPU time. */
	NET_POLICY_BULK = 2,	/* Throughput. */
	NET_POLICY_LATENCY = 3,	/* Short response times. */
	NET_POLICY_MIX = 5,	/* Of a device alone: EINVAL here. */
	NET_POLICY_POWER = 6,	/* The least power. */
};

#ifndef __bpf__
#include <sys/prctl.h>
#include <sys/socket.h>

/* Gives a socket a policy: 0, or -1 and errno. */
static inline int netpolicy_set_socket(int socket, enum netpolicy_name policy)
{
	int value = policy;

	return setsockopt(socket, SOL_SOCKET, SO_NETPOLICY, &value, sizeof(value));
}

/* The policy of a socket, or -1 and errno. */
static inline int netpolicy_get_socket(int socket)
{
	int value = NET_POLICY_NONE;
	socklen_t length = sizeof(value);

	return getsockopt(socket, SOL_SOCKET, SO_NETPOLICY, &value, &length) ? -1 : value;
}

/* Gives the calling process a policy: 0, or -1 and errno. */
static inline int netpolicy_set_task(enum netpolicy_name policy)
{
	return prctl(PR_SET_NETPOLICY, (unsigned long)policy, 0UL, 0UL, 0UL) < 0 ? -1 : 0;
}

/* The policy of the calling process, or -1 and errno. */
static inline int netpolicy_get_task(void)
{
	int answer = prctl(PR_GET_NETPOLICY, 0UL, 0UL, 0UL, 0UL);

	return answer < 0 ? -1 : answer & ~NETPOLICY_IS_SET;
}
#endif

#endif
