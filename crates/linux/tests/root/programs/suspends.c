/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Receives datagrams on a port through an epoll, one step for each line of standard input, and
 * prints "done" after each step; between two steps it stalls.
 *
 * usage: suspends PORT prefer|ordinary "wait": one epoll_wait until a datagram arrives, which the
 * program reads. "poll": one epoll_wait that ends after a moment without a datagram. "busy": after
 * a datagram, handles it for some milliseconds; twice, so that the next epoll_wait ends the batch.
 * "close": closes the epoll, and keeps the socket.
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct params {
	uint32_t busy_poll_usecs;
	uint16_t busy_poll_budget;
	uint8_t prefer_busy_poll;
	uint8_t flags;
};

#define SET_PARAMS _IOW(0x8A, 0x01, struct params)
#define PATIENCE_MS 60000
#define MOMENT_MS 20
#define BUSY_NS 8000000

static void drain(int datagrams)
{
	char bytes[64];

	while (recv(datagrams, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
}

int main(int argc, char **argv)
{
	struct params prefer = { .busy_poll_budget = 64, .prefer_busy_poll = 1 };
	struct sockaddr_in here = { .sin_family = AF_INET };
	int datagrams = socket(AF_INET, SOCK_DGRAM, 0), epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN }, found[7];
	const struct timespec busy = { 0, BUSY_NS };
	char line[16];

	if (argc != 3)
		return 2;
	here.sin_port = htons(atoi(argv[1]));
	if (bind(datagrams, (struct sockaddr *)&here, sizeof(here)) ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, datagrams, &event) ||
	    (!strcmp(argv[2], "prefer") && ioctl(epoll, SET_PARAMS, &prefer))) {
		perror("suspends");
		return 1;
	}
	printf("ready %d\n", epoll);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "close\n")) {
			close(epoll);
		} else if (!strcmp(line, "poll\n")) {
			if (epoll_wait(epoll, found, 7, MOMENT_MS) > 0)
				drain(datagrams);
		} else if (!strcmp(line, "busy\n")) {
			for (int turn = 0; turn < 2; turn++) {
				if (epoll_wait(epoll, found, 7, PATIENCE_MS) != 1)
					return 1;
				drain(datagrams);
				if (!turn)
					nanosleep(&busy, NULL);
			}
		} else if (epoll_wait(epoll, found, 7, PATIENCE_MS) == 1) {
			drain(datagrams);
		} else {
			return 1;
		}
		printf("done\n");
		fflush(stdout);
	}
	return 0;
}
