/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Holds an AF_XDP socket in copy mode until its standard input ends. The arguments are a device and
 * the index of one of its queues. Prints the socket's descriptor.
 */
#include <linux/if_xdp.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHUNK 2048u
#define CHUNKS 16u
#define RING 16

int main(int argc, char **argv)
{
	struct xdp_umem_reg memory;
	struct sockaddr_xdp address;
	int size = RING, fd;
	char end;

	if (argc != 3)
		return 2;
	memset(&memory, 0, sizeof(memory));
	memory.addr = (unsigned long)mmap(NULL, CHUNK * CHUNKS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memory.len = CHUNK * CHUNKS;
	memory.chunk_size = CHUNK;
	memset(&address, 0, sizeof(address));
	address.sxdp_family = AF_XDP;
	address.sxdp_ifindex = if_nametoindex(argv[1]);
	address.sxdp_queue_id = (unsigned int)strtoul(argv[2], NULL, 0);
	address.sxdp_flags = XDP_COPY;

	fd = socket(AF_XDP, SOCK_RAW, 0);
	if (fd < 0 || setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &memory, sizeof(memory)) < 0 ||
	    setsockopt(fd, SOL_XDP, XDP_UMEM_FILL_RING, &size, sizeof(size)) < 0 ||
	    setsockopt(fd, SOL_XDP, XDP_UMEM_COMPLETION_RING, &size, sizeof(size)) < 0 ||
	    setsockopt(fd, SOL_XDP, XDP_RX_RING, &size, sizeof(size)) < 0 ||
	    bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		perror("AF_XDP");
		return 1;
	}
	printf("ready %d\n", fd);
	fflush(stdout);
	return read(STDIN_FILENO, &end, 1) != 0;
}
