/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by app_requests.bpf.c and the Rust modules in app_requests/. The policy numbers are
 * defined in include/netpolicy.h.
 */
#ifndef __APP_REQUESTS_H__
#define __APP_REQUESTS_H__

enum request_source {
	REQUEST_OWN = 1,		/* The socket's policy was set with setsockopt(), on the socket or on the listener that accepted it. */
	REQUEST_OF_TASK = 2,	/* The socket inherited the policy of the process that created it. */
};

/* The iterator's record of an open socket with a requested policy. */
struct request_record {
	__u64 inode;
	__u32 policy;
	__u32 source;
};

/* A process that has requested a policy. */
struct asker {
	__u32 tgid;
	__u32 pad;
};

_Static_assert(sizeof(struct asker) == 8, "mirrored by app_requests::reader");
_Static_assert(sizeof(struct request_record) == 16, "mirrored by app_requests::store");

#endif
