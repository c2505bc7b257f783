/* SPDX-License-Identifier: GPL-2.0 */
/* Shared by wire.bpf.c and wire/mod.rs. Times are in nanoseconds. */
#ifndef __WIRE_H__
#define __WIRE_H__

#include "../buckets.h"

/* Set before load; the map .rodata.config. */
struct wire_config {
	/* The port of the server, in host byte order. */
	__u64 port;
	/* The network namespaces of server and client (inode numbers). */
	__u64 server;
	__u64 client;
};

/*
 * The map .data.gate: requests count if they are transmitted between two times;
 * their answers always count.
 */
struct wire_gate {
	__u64 opens;
	__u64 closes;
};

/* The map seen, with one entry. Every value is per CPU. */
struct wire_seen {
	/* Requests that the client's host transmitted. */
	__u64 requests;
	/* Requests that the server's host answered. */
	__u64 answered;
	/* Requests that were not tracked. */
	__u64 lost;
	/*
	 * Times from the transmission of a request to the transmission of its
	 * answer.
	 */
	__u32 spans[SPAN_BUCKETS];
};

#endif
