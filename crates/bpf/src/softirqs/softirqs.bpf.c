// SPDX-License-Identifier: GPL-2.0
/*
 * Measures the time of softirqs that polled certain NAPIs and interrupted tasks whose run time is
 * not measured.
 *
 * A softirq runs during whichever task it interrupts. Without CONFIG_IRQ_TIME_ACCOUNTING, its time
 * is part of that task's run time; the idle task's run time is not accounted. The run times of
 * server and client are measured separately, so this program counts the softirqs in all other
 * tasks.
 */
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "softirqs.h"

/* include/linux/interrupt.h */
#define NET_RX_SOFTIRQ 3

#define NAPIS_MAX 4096
#define TASKS_MAX 1024

char LICENSE[] SEC("license") = "GPL";

const volatile struct softirqs_config config SEC(".rodata.config");

volatile struct softirqs_gate gate SEC(".data.gate");

/* The NAPIs whose polls are counted. The values are unused. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, NAPIS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} napis SEC(".maps");

/*
 * The processes whose run time is measured separately: softirqs in their run
 * time are not counted. The values are unused.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TASKS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct softirq_time);
} spent SEC(".maps");

static __always_inline struct softirq_time *here(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&spent, &only);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_begins, unsigned int vec)
{
	struct softirq_time *time;

	if (vec != NET_RX_SOFTIRQ || !gate.opens)
		return 0;
	time = here();
	if (time) {
		time->polled = 0;
		time->since = bpf_ktime_get_ns();
	}
	return 0;
}

SEC("tp_btf/napi_poll")
int BPF_PROG(softirq_polls, struct napi_struct *napi, int work, int budget)
{
	struct softirq_time *time;
	__u32 id;

	if (!gate.opens)
		return 0;
	time = here();
	if (!time || !time->since || time->polled)
		return 0;
	id = napi->napi_id;
	if (bpf_map_lookup_elem(&napis, &id))
		time->polled = 1;
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_ends, unsigned int vec)
{
	__u64 opens = gate.opens;
	struct softirq_time *time;
	__u32 tgid;

	if (vec != NET_RX_SOFTIRQ || !opens)
		return 0;
	time = here();
	if (!time || !time->since)
		return 0;
	tgid = bpf_get_current_pid_tgid() >> 32;
	if (time->polled && time->since >= opens &&
	    (config.accounted || !bpf_map_lookup_elem(&processes, &tgid))) {
		time->ns += bpf_ktime_get_ns() - time->since;
		time->count++;
	}
	time->since = 0;
	return 0;
}
