/* SPDX-License-Identifier: GPL-2.0 */
/* All that births.bpf.c and births/mod.rs share. */
#ifndef __BIRTHS_H__
#define __BIRTHS_H__

enum birth_kind {
	BIRTH_CHILD = 1,	/* A watched process has forked. */
	BIRTH_EXEC = 2,		/* A watched process has a new image. */
	BIRTH_EXIT = 3,		/* The last thread of a watched process is gone. */
	BIRTH_EPOLL = 4,	/* A watched process has a new epoll. */
	BIRTH_LISTENER = 5,	/* A socket listens that somebody waits for. */
};

/* What is told beside what happens to watched processes. */
enum wanted {
	WANTED_ALL_IMAGES = 1,		/* Every new image. */
	WANTED_ALL_LISTENERS = 2,	/* Every socket that listens. */
};

struct wanted_where {
	/* The network namespace that processes and sockets must be in. */
	__u32 netns;
	__u32 flags;
};

/* The longest piece of an image's file name that tells images apart. */
#define IMAGE_BYTES 32

struct image_name {
	char bytes[IMAGE_BYTES];
};

struct birth {
	__u32 kind;
	/* Whom it happened to; the new process for BIRTH_CHILD. */
	__u32 tgid;
	/*
	 * Its parent for BIRTH_CHILD, the descriptor for BIRTH_EPOLL, the port
	 * for BIRTH_LISTENER, else 0.
	 */
	__u32 other;
	__u32 pad;
	/* When that process started, in ns since boot. */
	__u64 started_ns;
	/* When this happened: CLOCK_MONOTONIC in ns. */
	__u64 at_ns;
	char comm[16];
};

_Static_assert(sizeof(struct birth) == 48, "mirrored by births::Birth");

#endif
