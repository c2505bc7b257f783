/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Holds an io_uring with one registered socket until standard input ends. The argument is the
 * ring's flags. Prints the ring's descriptor.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define IORING_REGISTER_FILES 2

int main(int argc, char **argv)
{
	unsigned int params[30] = { 0 }; /* struct io_uring_params: entries, entries, flags, ... */
	int files[2], ring;

	params[2] = argc > 1 ? (unsigned int)strtoul(argv[1], NULL, 0) : 0;
	ring = (int)syscall(SYS_io_uring_setup, 8, params);
	files[0] = socket(AF_INET, SOCK_DGRAM, 0);
	files[1] = STDIN_FILENO;
	if (ring < 0 || files[0] < 0 || syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, files, 2) < 0) {
		perror("io_uring");
		return 1;
	}
	close(files[0]); /* Only the ring refers to the socket now. */
	printf("ready %d\n", ring);
	fflush(stdout);
	return read(STDIN_FILENO, params, 1) != 0;
}
