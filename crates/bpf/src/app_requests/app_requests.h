/* SPDX-License-Identifier: GPL-2.0 */
/* All that app_requests.bpf.c and app_requests/ share; the numbers of policies are those of include/netpolicy.h. */
#ifndef __APP_REQUESTS_H__
#define __APP_REQUESTS_H__

enum request_source {
	REQUEST_OWN = 1,		/* setsockopt() on the socket, or on the listener that it came from. */
	REQUEST_OF_TASK = 2,	/* The process that made it had requested one. */
};

/* An open socket with a requested policy: what the iterator writes. */
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
