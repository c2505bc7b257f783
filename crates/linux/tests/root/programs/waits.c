/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Waits on an empty epoll with each of the system calls, and prints how long each took, in microseconds.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <time.h>

static long long now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

#define TIMED(name, call)                                                                                              \
	do {                                                                                                           \
		long long begun = now_us();                                                                            \
		int found = call;                                                                                      \
		printf("%s %d %lld\n", name, found, now_us() - begun);                                                 \
	} while (0)

int main(void)
{
	struct timespec minute = { 60, 0 }, short_wait = { 0, 2000000 }, wrong = { 0, -1 };
	struct epoll_event event;
	sigset_t none;
	int epoll = epoll_create1(0);

	sigemptyset(&none);
	TIMED("wait-for-ever", epoll_wait(epoll, &event, 1, -1));
	TIMED("wait-a-minute", epoll_wait(epoll, &event, 1, 60000));
	TIMED("wait-2ms", epoll_wait(epoll, &event, 1, 2));
	TIMED("wait-not", epoll_wait(epoll, &event, 1, 0));
	TIMED("pwait-for-ever", epoll_pwait(epoll, &event, 1, -1, &none));
	TIMED("pwait2-for-ever", epoll_pwait2(epoll, &event, 1, NULL, &none));
	TIMED("pwait2-a-minute", epoll_pwait2(epoll, &event, 1, &minute, NULL));
	TIMED("pwait2-2ms", epoll_pwait2(epoll, &event, 1, &short_wait, NULL));
	TIMED("pwait2-nonsense", epoll_pwait2(epoll, &event, 1, &wrong, NULL));
	TIMED("wait-on-nothing", epoll_wait(-1, &event, 1, -1));
	return 0;
}
