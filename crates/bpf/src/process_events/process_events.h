/* SPDX-License-Identifier: GPL-2.0 */
/* Shared by process_events.bpf.c and process_events/mod.rs. */
#ifndef __PROCESS_EVENTS_H__
#define __PROCESS_EVENTS_H__

enum process_event_kind {
	PROCESS_CHILD = 1,	/* A watched process has forked. */
	PROCESS_EXEC = 2,		/* A watched process executed a new image. */
	PROCESS_EXIT = 3,		/* The last thread of a watched process has exited. */
	PROCESS_EPOLL = 4,	/* A watched process has a new epoll. */
	PROCESS_LISTENER = 5,	/* A requested or watched process serves a TCP or UDP port. */
	PROCESS_CONNECTION = 6,	/* An awaited listener has a connection. */
};

/* Events to report in addition to those of watched processes. */
enum wanted {
	WANTED_ALL_IMAGES = 1,		/* Every new image in the namespace. */
	WANTED_ALL_LISTENERS = 2,	/* Every listening TCP socket and every bound UDP port in the namespace. */
	WANTED_LISTENERS_ELSEWHERE = 4,	/* The listeners of WANTED_ALL_LISTENERS in other namespaces. */
};

struct wanted_where {
	/* The reader's network namespace; nothing is reported while it is 0. */
	__u32 netns;
	__u32 flags;
};

/* The listening sockets on a port in a network namespace. */
struct listener_key {
	__u32 netns;
	__u32 port;
};

/* The number of bytes of an image's file name that are compared. */
#define IMAGE_BYTES 32

struct image_name {
	char bytes[IMAGE_BYTES];
};

struct process_event {
	__u32 kind;
	/*
	 * The process; for PROCESS_CHILD, this is the new process; for PROCESS_CONNECTION, 0.
	 */
	__u32 tgid;
	/*
	 * For PROCESS_CHILD, the new process's parent; for PROCESS_EPOLL, the descriptor; for
	 * PROCESS_LISTENER and PROCESS_CONNECTION, the port; otherwise 0.
	 */
	__u32 other;
	/*
	 * The network namespace of the socket if the event has a port;
	 * otherwise 0.
	 */
	__u32 netns;
	/* The process's start time, in ns since boot. */
	__u64 started_ns;
	/* The event's time: CLOCK_MONOTONIC in ns. */
	__u64 at_ns;
	char comm[16];
};

_Static_assert(sizeof(struct process_event) == 48, "mirrored by process_events::ProcessEvent");

#endif
