/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Listens on 192.0.2.1:7007, echoes each byte of one connection, and waits for each byte with an
 * io_uring. Prints the ring's descriptor once it listens.
 */
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES 8

int main(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(7007) };
	struct io_uring_params params = { 0 };
	struct io_uring_sqe *sqes;
	unsigned int *tail, *mask, *array, *head;
	struct io_uring_cqe *cqes;
	unsigned int *cq_mask;
	int listener, connection, ring, on = 1;
	char *sq, *cq, byte;

	ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &params);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	inet_pton(AF_INET, "192.0.2.1", &address.sin_addr);
	if (ring < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(listener, 1) < 0) {
		perror("ring_echo");
		return 1;
	}
	sq = mmap(NULL, params.sq_off.array + params.sq_entries * sizeof(unsigned int), PROT_READ | PROT_WRITE,
		  MAP_SHARED, ring, IORING_OFF_SQ_RING);
	cq = mmap(NULL, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE,
		  MAP_SHARED, ring, IORING_OFF_CQ_RING);
	sqes = mmap(NULL, params.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring,
		    IORING_OFF_SQES);
	if (sq == MAP_FAILED || cq == MAP_FAILED || sqes == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	tail = (unsigned int *)(sq + params.sq_off.tail);
	mask = (unsigned int *)(sq + params.sq_off.ring_mask);
	array = (unsigned int *)(sq + params.sq_off.array);
	head = (unsigned int *)(cq + params.cq_off.head);
	cq_mask = (unsigned int *)(cq + params.cq_off.ring_mask);
	cqes = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
	printf("ready %d\n", ring);
	fflush(stdout);

	connection = accept(listener, NULL, NULL);
	setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	for (;;) {
		unsigned int slot = *tail & *mask;
		int got;

		memset(&sqes[slot], 0, sizeof(sqes[slot]));
		sqes[slot].opcode = IORING_OP_RECV;
		sqes[slot].fd = connection;
		sqes[slot].addr = (unsigned long)&byte;
		sqes[slot].len = 1;
		array[slot] = slot;
		__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
		if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
			return 1;
		got = cqes[*head & *cq_mask].res;
		__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
		if (got != 1 || send(connection, &byte, 1, 0) != 1)
			return got != 0;
	}
}
