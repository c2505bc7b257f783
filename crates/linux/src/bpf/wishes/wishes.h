/* SPDX-License-Identifier: GPL-2.0 */
/* All that wishes.bpf.c and wishes/ share; the numbers of policies are those of include/netpolicy.h. */
#ifndef __WISHES_H__
#define __WISHES_H__

enum wish_source {
	WISH_OWN = 1,		/* setsockopt() on the socket, or on the listener that it came from. */
	WISH_OF_TASK = 2,	/* The process that made it had a wish. */
};

/* What a socket shall be good at. */
struct socket_wish {
	__u32 policy;
	__u32 source;
};

/* A socket that somebody holds open, with its wish: what the iterator writes. */
struct wish_record {
	__u64 inode;
	__u32 policy;
	__u32 source;
};

/* A process that has asked for something. */
struct asker {
	__u32 tgid;
	__u32 pad;
};

_Static_assert(sizeof(struct asker) == 8, "mirrored by wishes::reader");
_Static_assert(sizeof(struct socket_wish) == 8, "mirrored by wishes::store");
_Static_assert(sizeof(struct wish_record) == 16, "mirrored by wishes::store");

#endif
