/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * The socket options and prctl() calls by which a program requests a policy for the packets of a socket, or
 * for all of its sockets.
 *
 * The interface is that of "Kernel NET policy" (2016), on kernels that do not have it: netpolicy implements
 * it in the cgroups for which `netpolicy sockets enable` was run. Elsewhere setsockopt() and getsockopt()
 * fail with ENOPROTOOPT and prctl() with EINVAL, as for any unknown option, so a program can always try. See
 * docs/explanation/interface-2016.md of netpolicy.
 */
#ifndef NETPOLICY_H
#define NETPOLICY_H

/*
 * setsockopt(socket, SOL_SOCKET, SO_NETPOLICY, &policy, sizeof(int)), and getsockopt() likewise.
 *
 * EINVAL: the value is not one of the policies below, or is shorter than an int. EPERM: this user
 * may not choose the policy.
 */
#define SO_NETPOLICY 0x4e50

/*
 * prctl(PR_SET_NETPOLICY, policy, 0, 0, 0) for the calling process, its future children and the sockets that
 * they create; prctl(PR_GET_NETPOLICY, 0, 0, 0, 0). Both return the policy in force, ORed with
 * NETPOLICY_IS_SET so that the result is never 0.
 */
#define PR_SET_NETPOLICY 0x4e504f4c
#define PR_GET_NETPOLICY 0x4e504f4d
#define NETPOLICY_IS_SET 0x100

/* The policies' numbers from 2016, and one new number. */
enum netpolicy_name {
	NET_POLICY_NONE = 0,	/* The kernel's default. */
	NET_POLICY_CPU = 1,	/* High throughput at low CPU time. */
	NET_POLICY_BULK = 2,	/* Throughput. */
	NET_POLICY_LATENCY = 3,	/* Short response times. */
	NET_POLICY_MIX = 5,	/* For devices only: EINVAL here. */
	NET_POLICY_POWER = 6,	/* Low power. */
};

#ifndef __bpf__
#include <sys/prctl.h>
#include <sys/socket.h>

/* Sets a socket's policy. Returns 0, or -1 and errno. */
static inline int netpolicy_set_socket(int socket, enum netpolicy_name policy)
{
	int value = policy;

	return setsockopt(socket, SOL_SOCKET, SO_NETPOLICY, &value, sizeof(value));
}

/* Returns a socket's policy, or -1 and errno. */
static inline int netpolicy_get_socket(int socket)
{
	int value = NET_POLICY_NONE;
	socklen_t length = sizeof(value);

	return getsockopt(socket, SOL_SOCKET, SO_NETPOLICY, &value, &length) ? -1 : value;
}

/* Sets the calling process's policy. Returns 0, or -1 and errno. */
static inline int netpolicy_set_task(enum netpolicy_name policy)
{
	return prctl(PR_SET_NETPOLICY, (unsigned long)policy, 0UL, 0UL, 0UL) < 0 ? -1 : 0;
}

/* Returns the calling process's policy, or -1 and errno. */
static inline int netpolicy_get_task(void)
{
	int answer = prctl(PR_GET_NETPOLICY, 0UL, 0UL, 0UL, 0UL);

	return answer < 0 ? -1 : answer & ~NETPOLICY_IS_SET;
}
#endif

#endif
