// SPDX-License-Identifier: GPL-2.0
/*
 * Measures how long an application takes to handle the events of one
 * epoll_wait: the time from the call's return to the next epoll_wait.
 *
 * irq-suspend-timeout must be at least that long: the return arms the timeout's
 * timer (ep_suspend_napi_irqs()), and the next epoll_wait polls the NAPI or
 * arms the timer again. Threads that share an epoll share its NAPI: the first
 * thread to call epoll_wait again ends the batch.
 *
 * The file has two sets of programs, of which only one is loaded:
 *
 * - At entry to and return from do_epoll_wait(), which only epoll_wait,
 *   epoll_pwait and epoll_pwait2 call. These programs measure the batches of
 *   all epolls, with the number of events.
 * - At the NAPI's timer and polls, for kernels that allow no programs at
 *   function entries. These programs measure the batches of applications whose
 *   IRQs are suspended.
 *
 * No program is attached to a system-call tracepoint, because that would slow
 * down every system call.
 */
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "../compat.bpf.h"
#include "../poller.bpf.h"
#include "batches.h"

#define EPOLLS_MAX 16384
#define NAPIS_MAX 4096
/* The maximum number of attempts to record a batch as the longest one if other
 * threads end batches at the same time. */
#define RACES_MAX 4

char LICENSE[] SEC("license") = "GPL";

const volatile struct batches_config config SEC(".rodata.config");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, EPOLLS_MAX);
	__type(key, struct batches_of);
	__type(value, struct batches);
} batches SEC(".maps");

/* For each NAPI, the process that last suspended its IRQ. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NAPIS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} suspended_by SEC(".maps");

/*
 * The number of epoll_wait returns with events that were not counted because a
 * map was full.
 */
__u64 lost SEC(".data.lost");

static const struct batches no_batches;

static __always_inline struct batches *batches_of(__u32 tgid, __u32 id, bool create)
{
	struct batches_of key = {
		.tgid = tgid,
		.id = id,
	};
	struct batches *of = bpf_map_lookup_elem(&batches, &key);

	if (of || !create)
		return of;
	bpf_map_update_elem(&batches, &key, &no_batches, BPF_NOEXIST);
	of = bpf_map_lookup_elem(&batches, &key);
	if (!of)
		__sync_fetch_and_add(&lost, 1);
	return of;
}

/*
 * Ends the current batch, if any, at the given time. If two threads try this at the same time, only
 * one ends the batch.
 */
static __always_inline void end(struct batches *of, __u64 at)
{
	__u64 since = of->since, events = of->returned, span, longest;

	if (!since || __sync_val_compare_and_swap(&of->since, since, 0) != since)
		return;
	span = at > since ? at - since : 0;
	__sync_fetch_and_add(&of->count, 1);
	__sync_fetch_and_add(&of->events, events);
	__sync_fetch_and_add(&of->ns, span);
	for (int race = 0; race < RACES_MAX; race++) {
		longest = of->longest_ns;
		if (span <= longest)
			return;
		if (__sync_val_compare_and_swap(&of->longest_ns, longest, span) == longest) {
			of->longest_events = events;
			return;
		}
	}
}

static __always_inline void begin(struct batches *of, __u64 now, __u64 events)
{
	struct task_struct *task = bpf_get_current_task_btf();

	of->returned = events;
	of->thread = task->pid;
	of->slept = task->nvcsw;
	of->interrupted = 0;
	of->since = now;
}

SEC("?fentry/do_epoll_wait")
int BPF_PROG(epoll_waits, int fd)
{
	struct batches *of = batches_of(bpf_get_current_pid_tgid() >> 32, fd, false);

	if (of)
		end(of, bpf_ktime_get_ns());
	return 0;
}

SEC("?fexit/do_epoll_wait")
int BPF_PROG(epoll_returns, int fd, void *events, int maxevents, void *timeout, int returned)
{
	struct batches *of;
	__u64 now;

	if (returned <= 0)
		return 0;
	of = batches_of(bpf_get_current_pid_tgid() >> 32, fd, true);
	if (!of)
		return 0;
	now = bpf_ktime_get_ns();
	/*
	 * Another thread's batch on this epoll ends as well, because this return suspends the IRQ
	 * again.
	 */
	end(of, now);
	of->maxevents = maxevents;
	begin(of, now, returned);
	return 0;
}

/*
 * The IRQ is suspended again, which ends the batch. Events were pending, so epoll_wait has not
 * slept, unless it could not poll the NAPI because a softirq was polling it. If the thread slept
 * and a softirq polled during the batch, the order of the two is unknown; the batch then ends at
 * the softirq's poll.
 */
static __always_inline void end_again(struct batches *of, __u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();
	bool slept = of->thread != (__u64)task->pid || of->slept != task->nvcsw;

	end(of, slept && of->interrupted ? of->interrupted : now);
}

SEC("?tp_btf/hrtimer_start")
int BPF_PROG(timer_armed, struct hrtimer *timer)
{
	struct napi_struct *napi = napi_of(timer, config.napi_watchdog);
	__u32 tgid = bpf_get_current_pid_tgid() >> 32, id;
	struct batches *of;
	__u64 now;

	if (!napi || !tgid)
		return 0;
	now = bpf_ktime_get_ns();
	if (!suspends(napi, timer, now))
		return 0;
	id = BPF_CORE_READ(napi, napi_id);
	of = batches_of(tgid, id, true);
	if (!of)
		return 0;
	end_again(of, now);
	begin(of, now, 0);
	if (bpf_map_update_elem(&suspended_by, &id, &tgid, BPF_ANY))
		__sync_fetch_and_add(&lost, 1);
	return 0;
}

/*
 * Returns the batch counts of the process that currently suspends this NAPI's
 * IRQ, or 0 if there is none.
 */
static __always_inline struct batches *suspending(struct napi_struct *napi)
{
	__u32 id = BPF_CORE_READ(napi, napi_id), *tgid = bpf_map_lookup_elem(&suspended_by, &id);
	struct batches *of = tgid ? batches_of(*tgid, id, false) : 0;

	return of && of->since ? of : 0;
}

SEC("?tp_btf/hrtimer_expire_entry")
int BPF_PROG(timer_expired, struct hrtimer *timer)
{
	struct napi_struct *napi = napi_of(timer, config.napi_watchdog);
	struct batches *of = napi ? suspending(napi) : 0;

	if (of && !of->interrupted) {
		of->interrupted = bpf_ktime_get_ns();
		of->outlasted++;
	}
	return 0;
}

SEC("?tp_btf/napi_poll")
int BPF_PROG(polled, struct napi_struct *napi, int work, int budget)
{
	struct batches *of;

	if (!budget || !napi->napi_id)
		return 0;
	if (polls_by_itself(bpf_get_current_task_btf(), ctx)) {
		of = batches_of(bpf_get_current_pid_tgid() >> 32, napi->napi_id, false);
		if (of)
			end(of, bpf_ktime_get_ns());
		return 0;
	}
	of = suspending(napi);
	if (of && !of->interrupted)
		of->interrupted = bpf_ktime_get_ns();
	return 0;
}
