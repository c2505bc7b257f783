/* SPDX-License-Identifier: GPL-2.0 */
/* All that wire.bpf.c and wire/mod.rs share. Times are in nanoseconds. */
#ifndef __WIRE_H__
#define __WIRE_H__

#include "../buckets.h"

/* Set before load; the map .rodata.config. */
struct wire_config {
	/* The port of the server, in the order of the host. */
	__u64 port;
	/* The network namespaces of server and client: their inodes. */
	__u64 server;
	__u64 client;
};

/* The map .data.gate: requests that are transmitted from one moment until another count, and their answers whenever they come. */
struct wire_gate {
	__u64 opens;
	__u64 closes;
};

/* The map seen, of one entry. Every value is per CPU. */
struct wire_seen {
	/* Requests that the client's host transmitted. */
	__u64 requests;
	/* Those that the server's host answered. */
	__u64 answered;
	/* Those for which there was no room. */
	__u64 lost;
	/* From the one transmission to the other. */
	__u32 spans[SPAN_BUCKETS];
};

#endif
