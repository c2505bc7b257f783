/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Receives datagrams through an epoll that prefers busy polling, so that each epoll_wait suspends
 * the IRQs of the datagrams' NAPI. Goes on until no datagram arrives for a time in which many were
 * sent. Then sets events-only polling ("events-only") or no polling, and prints whether another
 * datagram arrives, and after how many milliseconds.
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

struct params {
	uint32_t busy_poll_usecs;
	uint16_t busy_poll_budget;
	uint8_t prefer_busy_poll;
	uint8_t flags;
};

#define SET_PARAMS _IOW(0x8A, 0x01, struct params)
#define EVENTS_ONLY 1
#define PATIENCE_MS 20000
/*
 * The maximum number of attempts: a softirq that still runs when the suspension
 * begins may end the suspension.
 */
#define TRIES 400
#define PAUSE_NS 60000000

static long long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
	int only = argc > 1 && !strcmp(argv[1], "events-only");
	struct params prefer = { .busy_poll_budget = 8, .prefer_busy_poll = 1 };
	struct params then = { .busy_poll_usecs = only ? 50 : 0, .flags = only ? EVENTS_ONLY : 0 };
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(11987) };
	int datagrams = socket(AF_INET, SOCK_DGRAM, 0), epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	const struct timespec pause = { 0, PAUSE_NS };
	long long begun;
	char bytes[64];
	int found, i;

	if (bind(datagrams, (struct sockaddr *)&here, sizeof(here)) ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, datagrams, &event) || ioctl(epoll, SET_PARAMS, &prefer)) {
		perror("clears");
		return 1;
	}
	printf("ready\n");
	fflush(stdout);
	for (i = 0; i < TRIES; i++) {
		if (epoll_wait(epoll, &event, 1, PATIENCE_MS) != 1) {
			printf("nothing came at all\n");
			return 1;
		}
		while (recv(datagrams, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
			;
		nanosleep(&pause, NULL);
		if (recv(datagrams, bytes, sizeof(bytes), MSG_DONTWAIT) < 0)
			break;
	}
	if (i == TRIES) {
		printf("not suspended\n");
		return 1;
	}
	if (ioctl(epoll, SET_PARAMS, &then)) {
		perror("EPIOCSPARAMS");
		return 1;
	}
	begun = now_ms();
	found = epoll_wait(epoll, &event, 1, PATIENCE_MS);
	printf("%s %lld\n", found == 1 ? "came" : "nothing", now_ms() - begun);
	return 0;
}
