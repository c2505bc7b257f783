/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Caps the sleep of epoll_wait(2) in programs whose source cannot be changed. Full busy polling
 * needs an event loop that returns to the NAPI at least once per millisecond, and spinning for
 * events needs an event loop that never sleeps. The timeout is an argument of the program's own
 * call, so only a preloaded library can change it.
 *
 * NETPOLICY_EPOLL_WAIT_CAP_US is the cap in microseconds, 0..=2147483647; without it nothing is capped. A
 * timeout of -1 (infinite) becomes the cap; 0 and shorter timeouts are unchanged. epoll_wait and epoll_pwait
 * have millisecond timeouts, so the cap is rounded up for them.
 *
 * A call only compares and forwards: it allocates nothing and takes no lock.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "epoll_calls.h"

#define NO_CAP (-1L)

static long cap_us = NO_CAP;
static int ready;

static long read_cap(void)
{
	const char *digit = getenv("NETPOLICY_EPOLL_WAIT_CAP_US");
	long us = 0;

	if (!digit || !*digit)
		return NO_CAP;
	for (; *digit; digit++) {
		if (*digit < '0' || *digit > '9' || us > (2147483647L - (*digit - '0')) / 10)
			return NO_CAP;
		us = us * 10 + (*digit - '0');
	}
	return us;
}

/*
 * Runs when the library is loaded, or earlier if another library's constructor calls epoll_wait. Idempotent.
 */
__attribute__((constructor)) static void begin(void)
{
	find_next();
	cap_us = read_cap();
	__atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
}

static long cap(void)
{
	if (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE))
		begin();
	return cap_us;
}

static int capped_ms(int timeout)
{
	long us = cap();
	int ms = (int)((us + 999) / 1000);

	return us != NO_CAP && (timeout < 0 || timeout > ms) ? ms : timeout;
}

EXPORTED int epoll_wait(int epfd, struct epoll_event *events, int max, int timeout)
{
	return pass_wait(epfd, events, max, capped_ms(timeout));
}

EXPORTED int epoll_pwait(int epfd, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	return pass_pwait(epfd, events, max, capped_ms(timeout), mask);
}

EXPORTED int epoll_pwait2(int epfd, struct epoll_event *events, int max, const struct timespec *timeout,
			  const sigset_t *mask)
{
	long us = cap();
	struct timespec most = { us / 1000000, us % 1000000 * 1000 };

	if (us != NO_CAP && (!timeout || timeout->tv_sec > most.tv_sec ||
			     (timeout->tv_sec == most.tv_sec && timeout->tv_nsec > most.tv_nsec)))
		timeout = &most;
	return pass_pwait2(epfd, events, max, timeout, mask);
}
