/* SPDX-License-Identifier: GPL-2.0 */
/* Shared by wire.bpf.c and wire/mod.rs. Times are in nanoseconds. */
#ifndef __WIRE_H__
#define __WIRE_H__

#include "../buckets.h"

/* The content of the map .rodata.config, which is set before load. */
struct wire_config {
	/* The port of the server, in host byte order. */
	__u64 port;
	/* The inode numbers of the network namespaces of server and client. */
	__u64 server;
	__u64 client;
};

/*
 * The content of the map .data.gate. Requests count if they are transmitted
 * between these two times; their answers always count.
 */
struct wire_gate {
	__u64 opens;
	__u64 closes;
};

/* The value of the map seen, which has one entry. Every value is per CPU. */
struct wire_seen {
	/* The number of requests that the client's host transmitted. */
	__u64 requests;
	/* The number of requests that the server's host answered. */
	__u64 answered;
	/* The number of requests that were not tracked, because too many were
	 * outstanding on a connection, or there were too many connections. */
	__u64 lost;
	/*
	 * Times from the transmission of a request to the transmission of its
	 * answer.
	 */
	__u32 spans[SPAN_BUCKETS];
};

#endif
