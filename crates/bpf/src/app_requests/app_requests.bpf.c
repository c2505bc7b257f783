// SPDX-License-Identifier: GPL-2.0
/*
 * Implements SO_NETPOLICY and PR_SET_NETPOLICY on a kernel that has neither:
 * cgroup programs handle the socket option, and a program on the LSM hook of
 * prctl() handles PR_SET_NETPOLICY. The programs validate and store the
 * requested policies; user space decides what the policies mean.
 */
#include "../vmlinux_min.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "netpolicy.h"
#include "../process.bpf.h"
#include "app_requests.h"

/*
 * Puts these types into the object's BTF, which a test compares with the Rust
 * structures.
 */
const struct request_record *described_request_record __attribute__((unused));
const struct asker *described_asker __attribute__((unused));

#define TASKS_MAX 65536
#define USERS_MAX 4096
/* The size of the ring buffer `asked` in bytes: a power of two, and a multiple of any page size. */
#define ASKED_BYTES (64 << 10)

/* The maximum number of requests that are reported per user in a window, and the length of that
 * window in nanoseconds. */
#define REPORTS_MAX 100
#define REPORT_WINDOW_NS 1000000000ULL

/* include/uapi/asm-generic/socket.h, include/linux/socket.h */
#define SOL_SOCKET 1
#define AF_INET 2
#define AF_INET6 10

/* include/uapi/asm-generic/errno-base.h, errno.h */
#define EPERM 1
#define ENOMEM 12
#define EINVAL 22
#define EOPNOTSUPP 95

/* include/uapi/linux/capability.h */
#define CAP_NET_ADMIN 12

/*
 * A program sees only the first page of an option value that is longer than a page. If the program
 * sets optlen to 0, the kernel uses the caller's original bytes: kernel/bpf/cgroup.c.
 */
#define SHOWN_BYTES_MAX 4096

/* The key for users without an entry in `allowed`. */
#define ANY_USER ((__u32)-1)

char LICENSE[] SEC("license") = "GPL";

/*
 * The context of cgroup/setsockopt and getsockopt: UAPI
 * (include/uapi/linux/bpf.h), so its layout is fixed.
 */
struct bpf_sockopt {
	struct bpf_sock *sk;
	void *optval;
	void *optval_end;
	__s32 level;
	__s32 optname;
	__s32 optlen;
	__s32 retval;
};

/* A socket's policy. */
struct socket_request {
	__u32 policy;
	__u32 source;
};

/*
 * The policies of sockets. An accepted socket inherits its listener's policy.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct socket_request);
} sockets SEC(".maps");

/*
 * The policies of processes, by tgid. A child inherits its parent's entry; an exit
 * removes it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, TASKS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tasks SEC(".maps");

/*
 * Events for the daemon: processes that have requested a policy. Without a reader, the buffer fills
 * up and further events are dropped.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, ASKED_BYTES);
} asked SEC(".maps");

/* The number of a user's requests that were reported in the current window. */
struct report_rate {
	__u64 since;
	__u64 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, USERS_MAX);
	__type(key, __u32);
	__type(value, struct report_rate);
} rates SEC(".maps");

/*
 * The policies that a user may choose in this cgroup: bit N is policy number N.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, USERS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} allowed SEC(".maps");

/* The cgroup whose prctl() calls task_asks handles. */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} answered SEC(".maps");

static __always_inline __u32 current_tgid(void)
{
	return BPF_CORE_READ((struct task_struct *)bpf_get_current_task(), tgid);
}

static __always_inline bool is_policy(__u32 policy)
{
	return policy <= NET_POLICY_LATENCY || policy == NET_POLICY_POWER;
}

/*
 * Returns whether the caller has CAP_NET_ADMIN in the initial user namespace.
 */
static __always_inline bool is_administrator(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	const struct cred *cred = BPF_CORE_READ(task, cred);
	__u64 capabilities = 0;

	if (BPF_CORE_READ(cred, user_ns, level))
		return false;
	/*
	 * Before Linux 6.3, this field was an array of two 32-bit words, which has the same bytes
	 * on a little-endian machine.
	 */
	if (bpf_core_read(&capabilities, sizeof(capabilities), &cred->cap_effective))
		return false;
	return capabilities & (1ULL << CAP_NET_ADMIN);
}

static __always_inline bool may_choose(__u32 policy)
{
	__u32 user = (__u32)bpf_get_current_uid_gid();
	__u32 any_user = ANY_USER;
	__u32 *set = bpf_map_lookup_elem(&allowed, &user);

	if (!set)
		set = bpf_map_lookup_elem(&allowed, &any_user);
	/* NET_POLICY_NONE is always allowed: it is the kernel's default. */
	if (policy == NET_POLICY_NONE || (set && (*set & (1U << (policy & 31)))))
		return true;
	return is_administrator();
}

/* Returns 0 if the caller may set this policy, otherwise a negative errno. */
static __always_inline int judged(__u32 policy)
{
	if (!is_policy(policy))
		return -EINVAL;
	return may_choose(policy) ? 0 : -EPERM;
}

/*
 * Returns whether to report a request of this user now. The limit prevents one user from keeping
 * the daemon busy.
 */
static __always_inline bool may_report(void)
{
	__u32 user = (__u32)bpf_get_current_uid_gid();
	__u64 now = bpf_ktime_get_ns();
	struct report_rate first = { .since = now, .count = 1 };
	struct report_rate *rate = bpf_map_lookup_elem(&rates, &user);

	if (!rate) {
		bpf_map_update_elem(&rates, &user, &first, BPF_ANY);
		return true;
	}
	/*
	 * If two CPUs reach this point at the same time, at most one additional report is sent.
	 */
	if (now - rate->since >= REPORT_WINDOW_NS) {
		rate->since = now;
		rate->count = 0;
	}
	if (rate->count >= REPORTS_MAX)
		return false;
	__sync_fetch_and_add(&rate->count, 1);
	return true;
}

/*
 * Reports that the caller has changed its policy. A request beyond the rate
 * limit is still stored; the daemon finds it when it next reads all requests.
 */
static __always_inline void report(void)
{
	struct asker asker = { .tgid = current_tgid() };

	if (!may_report())
		return;
	bpf_ringbuf_output(&asked, &asker, sizeof(asker), 0);
}

/* Makes the system call return an error instead of the kernel's result. */
static __always_inline int refuse(int error)
{
	bpf_set_retval(error);
	return 0;
}

static __always_inline bool is_ours(struct bpf_sockopt *ctx)
{
	if (ctx->level == SOL_SOCKET && ctx->optname == SO_NETPOLICY)
		return true;
	if (ctx->optlen > SHOWN_BYTES_MAX)
		ctx->optlen = 0;
	return false;
}

SEC("?cgroup/setsockopt")
int set_socket(struct bpf_sockopt *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	int *value = ctx->optval;
	struct socket_request *request;
	bool is_other;
	__u32 policy;
	int error;

	if (!is_ours(ctx))
		return 1;
	if (!sk || (sk->family != AF_INET && sk->family != AF_INET6))
		return refuse(-EOPNOTSUPP);
	if (ctx->optlen < (int)sizeof(int) || (void *)(value + 1) > ctx->optval_end)
		return refuse(-EINVAL);
	policy = *value;
	error = judged(policy);
	if (error)
		return refuse(error);
	request = bpf_sk_storage_get(&sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!request)
		return refuse(-ENOMEM);
	/* A new entry starts with NET_POLICY_NONE. */
	is_other = request->policy != policy;
	request->policy = policy;
	request->source = REQUEST_OWN;
	if (is_other)
		report();
	/* Skip the kernel's own handler. */
	ctx->optlen = -1;
	return 1;
}

SEC("?cgroup/getsockopt")
int get_socket(struct bpf_sockopt *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	int *value = ctx->optval;
	struct socket_request *request;

	if (!is_ours(ctx))
		return 1;
	if (!sk || (sk->family != AF_INET && sk->family != AF_INET6))
		return refuse(-EOPNOTSUPP);
	if ((void *)(value + 1) > ctx->optval_end)
		return refuse(-EINVAL);
	request = bpf_sk_storage_get(&sockets, sk, 0, 0);
	*value = request ? request->policy : NET_POLICY_NONE;
	ctx->optlen = sizeof(int);
	/* The kernel's own handler has returned ENOPROTOOPT: replace it by
	 * success. */
	bpf_set_retval(0);
	return 1;
}

SEC("?cgroup/sock_create")
int socket_made(struct bpf_sock *ctx)
{
	__u32 tgid = current_tgid();
	__u32 *policy = bpf_map_lookup_elem(&tasks, &tgid);
	struct socket_request request = { .source = REQUEST_OF_TASK };

	if (!policy)
		return 1;
	request.policy = *policy;
	bpf_sk_storage_get(&sockets, ctx, &request, BPF_SK_STORAGE_GET_F_CREATE);
	return 1;
}

static __always_inline int set_task(unsigned long policy, bool rest)
{
	__u32 tgid = current_tgid();
	__u32 number = policy;
	__u32 *before;
	int error;

	if (rest || policy > NET_POLICY_POWER)
		return -EINVAL;
	error = judged(number);
	if (error)
		return error;
	before = bpf_map_lookup_elem(&tasks, &tgid);
	if (before ? *before == number : number == NET_POLICY_NONE)
		return NETPOLICY_IS_SET | number;
	if (bpf_map_update_elem(&tasks, &tgid, &number, BPF_ANY))
		return -ENOMEM;
	report();
	return NETPOLICY_IS_SET | number;
}

static __always_inline int get_task(bool rest)
{
	__u32 tgid = current_tgid();
	__u32 *policy = bpf_map_lookup_elem(&tasks, &tgid);

	if (rest)
		return -EINVAL;
	return NETPOLICY_IS_SET | (policy ? *policy : NET_POLICY_NONE);
}

/*
 * At this hook, a security module may handle a prctl(): if it returns a
 * non-zero result, prctl() returns that result to its caller. After 0, prctl()
 * would continue and fail because the option is unknown, so the results defined
 * in netpolicy.h are never 0. A BPF program of type LSM could only deny the
 * call.
 */
SEC("?fmod_ret/security_task_prctl")
int BPF_PROG(task_asks, int option, unsigned long arg2, unsigned long arg3, unsigned long arg4,
	     unsigned long arg5)
{
	bool rest = arg3 || arg4 || arg5;

	if (option != PR_SET_NETPOLICY && option != PR_GET_NETPOLICY)
		return 0;
	if (bpf_current_task_under_cgroup(&answered, 0) != 1)
		return 0;
	return option == PR_SET_NETPOLICY ? set_task(arg2, rest) : get_task(rest || arg2);
}

SEC("?tp_btf/sched_process_fork")
int BPF_PROG(process_forked, struct task_struct *parent, struct task_struct *child)
{
	__u32 tgid = child->tgid, from = parent->tgid;
	__u32 *policy;

	if (!is_new_process(child))
		return 0;
	policy = bpf_map_lookup_elem(&tasks, &from);
	if (policy && bpf_map_update_elem(&tasks, &tgid, policy, BPF_ANY))
		count_lost();
	return 0;
}

SEC("?tp_btf/sched_process_exit")
int BPF_PROG(process_exited, struct task_struct *task)
{
	__u32 tgid = task->tgid;

	if (was_last_thread(task))
		bpf_map_delete_elem(&tasks, &tgid);
	return 0;
}

SEC("?iter/bpf_sk_storage_map")
int socket_requests(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct socket_request *request = ctx->value;
	struct sock *sk = ctx->sk;
	struct request_record record = {};
	struct socket *socket;

	if (!request || !sk)
		return 0;
	socket = BPF_CORE_READ(sk, sk_socket);
	record.inode = socket ? BPF_CORE_READ(socket, file, f_inode, i_ino) : 0;
	record.policy = request->policy;
	record.source = request->source;
	/* A socket without a file (inode 0) is in a listener's queue, or is being closed. */
	if (record.inode)
		bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}
