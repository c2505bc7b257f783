// SPDX-License-Identifier: GPL-2.0
/*
 * Counts who polled a NAPI, and in which context.
 *
 * One program runs per poll, and two run for the NAPI's timer; none runs at
 * softirq entry or exit. The stack shows whether a task polls in its own system
 * call; see polls_by_itself().
 */
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "../compat.bpf.h"
#include "../poller.bpf.h"
#include "delivery.h"

/*
 * The kernel does not reuse NAPI ids while a counter exists: 4096 entries are
 * enough for many device resets.
 */
#define NAPIS_MAX 4096
#define POLLERS_MAX 16384

char LICENSE[] SEC("license") = "GPL";

const volatile struct delivery_config config SEC(".rodata.config");

/* The number of the current interval. The reader increments it for each
 * snapshot. */
volatile __u64 interval SEC(".data.interval");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NAPIS_MAX);
	__type(key, __u32);
	__type(value, struct napi_counts);
} napis SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, POLLERS_MAX);
	__type(key, struct poller);
	__type(value, struct polls);
} pollers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct host_counts);
} host SEC(".maps");

static const struct napi_counts no_counts;
static const struct polls no_polls;

static __always_inline struct host_counts *host_counts(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&host, &only);
}

static __always_inline void count_lost(void)
{
	struct host_counts *counts = host_counts();

	if (counts)
		counts->lost++;
}

static __always_inline void count(struct polls *polls, int work)
{
	polls->polls++;
	if (work > 0)
		polls->packets += work;
	else
		polls->empty++;
}

static __always_inline struct napi_counts *counts_of(struct napi_struct *napi, __u32 id)
{
	struct napi_counts *counts = bpf_map_lookup_elem(&napis, &id);
	struct net_device *dev;

	if (!counts) {
		bpf_map_update_elem(&napis, &id, &no_counts, BPF_NOEXIST);
		counts = bpf_map_lookup_elem(&napis, &id);
		if (!counts) {
			count_lost();
			return 0;
		}
	}
	if (!counts->device[0]) {
		dev = BPF_CORE_READ(napi, dev);
		if (dev)
			bpf_probe_read_kernel_str(counts->device, sizeof(counts->device), &dev->name);
	}
	return counts;
}

/*
 * Returns whether the IRQ stays masked after an application polled this NAPI
 * and found nothing. If so, busy_poll_stop() arms the timer instead of enabling
 * the IRQ.
 */
static __always_inline bool keeps_masked(struct napi_struct *napi)
{
	return napi_irq_suspend_ns(napi) && napi_gro_flush_ns(napi) && napi_defer_hard_irqs(napi);
}

static __always_inline void count_application(struct napi_struct *napi, __u32 id, __u32 tgid, int work)
{
	struct poller key = {
		.napi_id = id,
		.tgid = tgid,
	};
	struct polls *polls = bpf_map_lookup_elem(&pollers, &key);

	if (!polls) {
		bpf_map_update_elem(&pollers, &key, &no_polls, BPF_NOEXIST);
		polls = bpf_map_lookup_elem(&pollers, &key);
		if (!polls) {
			count_lost();
			return;
		}
		counts_of(napi, id); /* This also records the device's name. */
	}
	count(polls, work);
}

/*
 * Returns whether napi_resume_irqs(), rather than an interrupt, raised this softirq. The IRQ is
 * then still masked. The application's poll has found no event; the softirq polls once more before
 * the system call continues, or later in ksoftirqd if that is running.
 */
static __always_inline bool resumes(struct napi_struct *napi, __u32 last_poller, struct task_struct *task)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;

	if (!last_poller || !tgid || !keeps_masked(napi))
		return false;
	return tgid == last_poller || task->flags & PF_KTHREAD;
}

SEC("tp_btf/napi_poll")
int BPF_PROG(napi_polled, struct napi_struct *napi, int work, int budget)
{
	struct task_struct *task;
	struct napi_counts *counts;
	__u32 id = napi->napi_id, tgid;

	if (!budget) /* netpoll only reaps transmitted packets and receives none. */
		return 0;
	if (!id) {
		/*
		 * Among NAPIs without a device, only the backlog receives; the
		 * others only transmit.
		 */
		struct host_counts *all = napi->dev ? 0 : host_counts();

		if (all)
			count(&all->backlog, work);
		return 0;
	}

	task = bpf_get_current_task_btf();
	if (polls_by_itself(task, ctx)) {
		tgid = bpf_get_current_pid_tgid() >> 32;
		count_application(napi, id, tgid, work);
		if (keeps_masked(napi)) {
			counts = counts_of(napi, id);
			if (counts)
				counts->last_poller = tgid;
		}
		return 0;
	}

	counts = counts_of(napi, id);
	if (!counts)
		return 0;
	if (task == napi->thread) {
		count(&counts->kthread, work);
	} else if (counts->timer_due) {
		count(&counts->timer, work);
		counts->last_poller = 0;
		if (work < budget)
			counts->timer_due = 0;
	} else if (resumes(napi, counts->last_poller, task)) {
		count_application(napi, id, counts->last_poller, work);
		if (work < budget)
			counts->last_poller = 0;
	} else {
		count(&counts->interrupt, work);
		counts->last_poller = 0;
	}
	return 0;
}

SEC("tp_btf/hrtimer_start")
int BPF_PROG(napi_timer_armed, struct hrtimer *timer)
{
	struct napi_struct *napi = napi_of(timer, config.napi_watchdog);
	struct longest_span *longest;
	struct napi_counts *counts;
	__u64 now, span;

	if (!napi)
		return 0;
	counts = counts_of(napi, BPF_CORE_READ(napi, napi_id));
	if (!counts)
		return 0;

	now = bpf_ktime_get_ns();
	span = left(timer, now);
	counts->timer_armed++;
	longest = &counts->longest[interval & 1];
	if (longest->interval != interval) {
		longest->interval = interval;
		longest->ns = 0;
	}
	if (span > longest->ns)
		longest->ns = span;
	if (suspends(napi, timer, now))
		counts->suspended++;
	return 0;
}

SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(napi_timer_expired, struct hrtimer *timer)
{
	struct napi_struct *napi = napi_of(timer, config.napi_watchdog);
	struct napi_counts *counts;

	if (!napi)
		return 0;
	counts = counts_of(napi, BPF_CORE_READ(napi, napi_id));
	if (!counts)
		return 0;
	counts->timer_expired++;
	/*
	 * napi_watchdog() schedules the NAPI on this CPU, unless the NAPI is
	 * already being polled or has a thread.
	 */
	if (!(BPF_CORE_READ(napi, state) & NAPIF_STATE_SCHED) && !BPF_CORE_READ(napi, thread))
		counts->timer_due = 1;
	return 0;
}
