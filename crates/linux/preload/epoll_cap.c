/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Caps how long epoll_wait(2) may sleep, for programs that cannot be asked to: full busy polling needs a loop that
 * comes back to the NAPI at least every millisecond, and the timeout is the program's own argument, which nothing
 * outside its process can change.
 *
 * NETPOLICY_EPOLL_WAIT_CAP_US holds the cap in microseconds, 1..=2147483647; otherwise nothing is capped. A
 * timeout of -1 (for ever) becomes the cap, 0 (return at once) stays 0, a shorter one stays. epoll_wait and
 * epoll_pwait count in milliseconds, so the cap is rounded up there.
 *
 * Linked without a C library of its own: every symbol comes from the program's, whichever that is and however old.
 * All lookups happen when the library is loaded, before the program has threads or signal handlers of its own; a
 * call only compares and passes on. It allocates nothing and takes no lock.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define SIGSET_BYTES (_NSIG / 8) /* the kernel's sigset_t, not the C library's */
#define NO_CAP 0L
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441 /* Linux 5.11, the same on every machine */
#endif

/* Programs from before glibc 2.34 may run without dlsym; calls then go straight to the kernel. */
extern void *dlsym(void *, const char *) __attribute__((weak));

static int (*next_wait)(int, struct epoll_event *, int, int);
static int (*next_pwait)(int, struct epoll_event *, int, int, const sigset_t *);
static int (*next_pwait2)(int, struct epoll_event *, int, const struct timespec *, const sigset_t *);
static long cap_us;
static int ready;

static long read_cap(void)
{
	const char *digit = getenv("NETPOLICY_EPOLL_WAIT_CAP_US");
	long us = NO_CAP;

	for (; digit && *digit; digit++) {
		if (*digit < '0' || *digit > '9' || us > (2147483647L - (*digit - '0')) / 10)
			return NO_CAP;
		us = us * 10 + (*digit - '0');
	}
	return us;
}

/* Runs when the library is loaded, or earlier if another library's constructor waits. Twice does no harm. */
__attribute__((constructor)) static void begin(void)
{
	if (dlsym) {
		/* The next definitions after ours, in the order in which the program was linked. */
		*(void **)&next_wait = dlsym(RTLD_NEXT, "epoll_wait");
		*(void **)&next_pwait = dlsym(RTLD_NEXT, "epoll_pwait");
		*(void **)&next_pwait2 = dlsym(RTLD_NEXT, "epoll_pwait2");
	}
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
	timeout = capped_ms(timeout);
	if (next_wait)
		return next_wait(epfd, events, max, timeout);
	return (int)syscall(SYS_epoll_pwait, epfd, events, max, timeout, NULL, SIGSET_BYTES);
}

EXPORTED int epoll_pwait(int epfd, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	timeout = capped_ms(timeout);
	if (next_pwait)
		return next_pwait(epfd, events, max, timeout, mask);
	return (int)syscall(SYS_epoll_pwait, epfd, events, max, timeout, mask, SIGSET_BYTES);
}

EXPORTED int epoll_pwait2(int epfd, struct epoll_event *events, int max, const struct timespec *timeout,
			  const sigset_t *mask)
{
	long us = cap();
	struct timespec most = { us / 1000000, us % 1000000 * 1000 };

	if (us != NO_CAP && (!timeout || timeout->tv_sec > most.tv_sec ||
			     (timeout->tv_sec == most.tv_sec && timeout->tv_nsec > most.tv_nsec)))
		timeout = &most;
	if (next_pwait2)
		return next_pwait2(epfd, events, max, timeout, mask);
	return (int)syscall(SYS_epoll_pwait2, epfd, events, max, timeout, mask, SIGSET_BYTES);
}
