/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Counts how many events each epoll_wait(2) returned, for the process that started the program.
 * Only the program has this number: a tracepoint on the system call would slow down every call on
 * the machine.
 *
 * NETPOLICY_EPOLL_COUNTS names a file of sizeof(struct counts) zeros. It is mapped when the library is
 * loaded, before the program drops privileges; without it nothing is counted. Each thread counts in its own
 * slot, in cache lines that no other thread writes. Threads beyond the last slot, and forked children, share
 * one slot without losing counts, because each count is one atomic addition.
 * crates/linux/src/process/preload/counts.rs reads the file.
 *
 * A call takes no lock, allocates nothing, and preserves errno.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "epoll_calls.h"

#define THREADS_MAX 64
#define SIZES 12 /* classes of calls: 0 events, 1, 2..3, 4..7, ... 1024 and more */

struct slot {
	unsigned long long sizes[SIZES];
	unsigned long long events; /* sum over all calls */
	unsigned long long most;   /* largest of one call; the reader resets it */
	unsigned long long failed; /* calls that returned an error */
	unsigned long long unused; /* pads the slot to whole cache lines */
};

struct counts {
	unsigned long long threads; /* threads that have counted anything, including those without their own slot */
	unsigned long long unused[15];
	struct slot slots[THREADS_MAX];
};

/* crates/linux/src/process/preload/counts.rs has the same offsets. */
_Static_assert(offsetof(struct slot, events) == 96, "read by counts.rs");
_Static_assert(offsetof(struct slot, most) == 104, "reset by counts.rs");
_Static_assert(offsetof(struct slot, failed) == 112, "read by counts.rs");
_Static_assert(offsetof(struct counts, slots) == 128 && sizeof(struct slot) == 128, "read by counts.rs");
_Static_assert(sizeof(struct counts) == 8320, "made by counts.rs");

static struct counts *counts;
static int ready;
/*
 * Static TLS, allocated at load time: memory allocated at first use could be allocated in a
 * signal handler.
 */
static __thread struct slot *mine __attribute__((tls_model("initial-exec")));

static struct counts *map_counts(void)
{
	const char *name = getenv("NETPOLICY_EPOLL_COUNTS");
	int file = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
	void *found = MAP_FAILED;

	if (file < 0)
		return NULL;
	/* A shorter file would cause a bus error at the first count. */
	if (lseek(file, 0, SEEK_END) == (off_t)sizeof(struct counts))
		found = mmap(NULL, sizeof(struct counts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	return found == MAP_FAILED ? NULL : found;
}

/*
 * Runs when the library is loaded, or earlier if another library's constructor calls
 * epoll_wait.
 */
__attribute__((constructor)) static void begin(void)
{
	if (__atomic_load_n(&ready, __ATOMIC_ACQUIRE))
		return;
	find_next();
	counts = map_counts();
	__atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
}

static void prepare(void)
{
	if (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE))
		begin();
}

static struct slot *slot(void)
{
	unsigned long long number;

	if (!mine && counts) {
		number = __atomic_fetch_add(&counts->threads, 1, __ATOMIC_RELAXED);
		mine = &counts->slots[number < THREADS_MAX ? number : THREADS_MAX - 1];
	}
	return mine;
}

static int counted(int found)
{
	struct slot *in = slot();
	unsigned long long events = (unsigned int)found, most;
	int size;

	if (!in)
		return found;
	if (found < 0) {
		__atomic_fetch_add(&in->failed, 1, __ATOMIC_RELAXED);
		return found;
	}
	size = found ? 64 - __builtin_clzll(events) : 0;
	__atomic_fetch_add(&in->sizes[size < SIZES ? size : SIZES - 1], 1, __ATOMIC_RELAXED);
	if (!found)
		return found;
	__atomic_fetch_add(&in->events, events, __ATOMIC_RELAXED);
	most = __atomic_load_n(&in->most, __ATOMIC_RELAXED);
	while (events > most &&
	       !__atomic_compare_exchange_n(&in->most, &most, events, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	return found;
}

EXPORTED int epoll_wait(int epfd, struct epoll_event *events, int max, int timeout)
{
	prepare();
	return counted(pass_wait(epfd, events, max, timeout));
}

EXPORTED int epoll_pwait(int epfd, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	prepare();
	return counted(pass_pwait(epfd, events, max, timeout, mask));
}

EXPORTED int epoll_pwait2(int epfd, struct epoll_event *events, int max, const struct timespec *timeout,
			  const sigset_t *mask)
{
	prepare();
	return counted(pass_pwait2(epfd, events, max, timeout, mask));
}
