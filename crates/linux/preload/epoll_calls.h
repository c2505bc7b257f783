/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Calls the functions of the epoll_wait family as the program would without this library: the next
 * definition in link order or, without one, the system call.
 *
 * Libraries that include this header are linked without a C library; every symbol resolves to the program's
 * own, whichever C library that is. All lookups happen when the library is loaded, before the program has
 * threads or signal handlers.
 */
#ifndef NETPOLICY_EPOLL_CALLS_H
#define NETPOLICY_EPOLL_CALLS_H

#include <dlfcn.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define SIGSET_BYTES (_NSIG / 8) /* the kernel's sigset_t, not the C library's */
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441 /* Linux 5.11, the same on every machine */
#endif

/* Programs built for glibc before 2.34 may have no dlsym; calls then go directly to the kernel. */
extern void *dlsym(void *, const char *) __attribute__((weak));

static int (*next_wait)(int, struct epoll_event *, int, int);
static int (*next_pwait)(int, struct epoll_event *, int, int, const sigset_t *);
static int (*next_pwait2)(int, struct epoll_event *, int, const struct timespec *, const sigset_t *);

/* Looks up the next definitions in link order. Idempotent. */
static void find_next(void)
{
	if (!dlsym)
		return;
	*(void **)&next_wait = dlsym(RTLD_NEXT, "epoll_wait");
	*(void **)&next_pwait = dlsym(RTLD_NEXT, "epoll_pwait");
	*(void **)&next_pwait2 = dlsym(RTLD_NEXT, "epoll_pwait2");
}

static inline int pass_wait(int epfd, struct epoll_event *events, int max, int timeout)
{
	if (next_wait)
		return next_wait(epfd, events, max, timeout);
	return (int)syscall(SYS_epoll_pwait, epfd, events, max, timeout, NULL, SIGSET_BYTES);
}

static inline int pass_pwait(int epfd, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	if (next_pwait)
		return next_pwait(epfd, events, max, timeout, mask);
	return (int)syscall(SYS_epoll_pwait, epfd, events, max, timeout, mask, SIGSET_BYTES);
}

static inline int pass_pwait2(int epfd, struct epoll_event *events, int max, const struct timespec *timeout,
			      const sigset_t *mask)
{
	if (next_pwait2)
		return next_pwait2(epfd, events, max, timeout, mask);
	return (int)syscall(SYS_epoll_pwait2, epfd, events, max, timeout, mask, SIGSET_BYTES);
}

#endif
