/* SPDX-License-Identifier: GPL-2.0 */
/* All that births.bpf.c and births/mod.rs share. */
#ifndef __BIRTHS_H__
#define __BIRTHS_H__

enum birth_kind {
	BIRTH_CHILD = 1,	/* A watched process has forked. */
	BIRTH_EXEC = 2,		/* A watched process has a new image. */
	BIRTH_EXIT = 3,		/* The last thread of a watched process is gone. */
	BIRTH_EPOLL = 4,	/* A watched process has a new epoll. */
};

struct birth {
	__u32 kind;
	/* Whom it happened to; the new process for BIRTH_CHILD. */
	__u32 tgid;
	/* Its parent for BIRTH_CHILD, the descriptor for BIRTH_EPOLL, else 0. */
	__u32 other;
	__u32 pad;
	/* When that process started, in ns since boot. */
	__u64 started_ns;
	char comm[16];
};

_Static_assert(sizeof(struct birth) == 40, "mirrored by births::Birth");

#endif
