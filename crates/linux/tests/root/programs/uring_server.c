/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Echoes what it receives, one connection at a time, through an io_uring, without system calls to
 * receive or send. The arguments are the server's address and port.
 */
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ring;
static unsigned int *tail, *mask, *array, *head, *end, *cmask;
static struct io_uring_sqe *sqes;
static struct io_uring_cqe *cqes;

static void *map(size_t size, off_t at)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, at);

	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return memory;
}

static void set_up(void)
{
	struct io_uring_params params;
	char *sq, *cq;

	memset(&params, 0, sizeof(params));
	ring = (int)syscall(SYS_io_uring_setup, 8, &params);
	if (ring < 0) {
		perror("io_uring_setup");
		exit(1);
	}
	sq = map(params.sq_off.array + params.sq_entries * sizeof(unsigned int), IORING_OFF_SQ_RING);
	cq = map(params.cq_off.cqes + params.cq_entries * sizeof(*cqes), IORING_OFF_CQ_RING);
	sqes = map(params.sq_entries * sizeof(*sqes), IORING_OFF_SQES);
	tail = (unsigned int *)(sq + params.sq_off.tail);
	mask = (unsigned int *)(sq + params.sq_off.ring_mask);
	array = (unsigned int *)(sq + params.sq_off.array);
	head = (unsigned int *)(cq + params.cq_off.head);
	end = (unsigned int *)(cq + params.cq_off.tail);
	cmask = (unsigned int *)(cq + params.cq_off.ring_mask);
	cqes = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
}

/* Performs one operation of the io_uring and returns its result. */
static int does(int opcode, int fd, void *bytes, unsigned int length)
{
	unsigned int at = *tail & *mask;
	int result;

	memset(&sqes[at], 0, sizeof(sqes[at]));
	sqes[at].opcode = (__u8)opcode;
	sqes[at].fd = fd;
	sqes[at].addr = (unsigned long)bytes;
	sqes[at].len = length;
	array[at] = at;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0) {
		perror("io_uring_enter");
		exit(1);
	}
	while (*head == __atomic_load_n(end, __ATOMIC_ACQUIRE))
		;
	result = cqes[*head & *cmask].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return result;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
	char bytes[4096];

	if (argc < 3 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1)
		return 2;
	address.sin_port = htons((unsigned short)atoi(argv[2]));
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 16)) {
		perror("listen");
		return 1;
	}
	set_up();
	for (;;) {
		int connection = does(IORING_OP_ACCEPT, listener, NULL, 0), length;

		if (connection < 0)
			return 1;
		while ((length = does(IORING_OP_RECV, connection, bytes, sizeof(bytes))) > 0)
			does(IORING_OP_SEND, connection, bytes, (unsigned int)length);
		close(connection);
	}
}
