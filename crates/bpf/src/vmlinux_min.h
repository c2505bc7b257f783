/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The parts of the kernel's types that the programs read.
 *
 * Every record has preserve_access_index: libbpf finds members by name in the BTF of the
 * running kernel. Only a member's name and type matter here, not its offset. The file is
 * written by hand, so that the build needs neither bpftool nor the BTF of the build
 * machine.
 */
#ifndef __VMLINUX_H__
#define __VMLINUX_H__

typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u16 __sum16;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s64 ktime_t;
typedef _Bool bool;

#define true 1
#define false 0

/* include/uapi/linux/bpf.h */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_CGROUP_ARRAY = 8,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_REUSEPORT_SOCKARRAY = 20,
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
};

enum sk_action {
	SK_DROP = 0,
	SK_PASS = 1,
};

/* include/uapi/linux/bpf.h; programs get this instead of struct sk_reuseport_kern. */
struct sk_reuseport_md {
	void *data;
	void *data_end;
	__u32 len;
	__u32 eth_protocol;
	__u32 ip_protocol;
	__u32 bind_inany;
	__u32 hash;
};

/* include/net/tcp_states.h, include/uapi/linux/in.h, include/linux/socket.h */
#define TCP_LISTEN 10
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define AF_INET6 10

#define BPF_F_NO_PREALLOC (1U << 0)
#define BPF_F_CLONE (1U << 9)
#define BPF_SK_STORAGE_GET_F_CREATE (1U << 0)

/* include/linux/sched.h */
#define PF_KTHREAD 0x00200000

/* include/linux/netdevice.h: NAPI_STATE_SCHED is bit 0, NAPI_STATE_IN_BUSY_POLL bit 6. */
#define NAPIF_STATE_SCHED 1UL
#define NAPIF_STATE_IN_BUSY_POLL (1UL << 6)

/* include/uapi/linux/magic.h */
#define ANON_INODE_FS_MAGIC 0x09041934

/* include/uapi/linux/stat.h */
#define S_IFMT 00170000
#define S_IFSOCK 0140000

/* A cgroup program's view of a socket, at fixed offsets: include/uapi/linux/bpf.h. */
struct bpf_sock {
	__u32 bound_dev_if;
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 mark;
	__u32 priority;
	__u32 src_ip4;
	__u32 src_ip6[4];
	__u32 src_port;	/* host byte order */
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
	unsigned long long sum_sched_runtime;
	unsigned long nvcsw;
	unsigned long nivcsw;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

struct nsproxy {
	struct net *net_ns;
};

struct user_namespace {
	int level;
};

typedef struct {
	u64 val;
} kernel_cap_t;

struct cred {
	kernel_cap_t cap_effective;
	struct user_namespace *user_ns;
};

struct sched_info {
	unsigned long pcount;
	unsigned long long run_delay;
};

struct sched_entity {
	u64 sum_exec_runtime;
};

struct task_struct {
	unsigned int flags;
	struct sched_entity se;
	unsigned long nvcsw;
	unsigned long nivcsw;
	struct sched_info sched_info;
	struct nsproxy *nsproxy;
	int pid;
	int tgid;
	void *stack;
	u64 start_boottime;
	char comm[16];
	struct task_struct *group_leader;
	struct signal_struct *signal;
	const struct cred *cred;
};

struct pt_regs {
#if defined(__TARGET_ARCH_x86)
	unsigned long orig_ax;
#endif
};

struct timerqueue_node {
	ktime_t expires;
};

struct hrtimer {
	struct timerqueue_node node;
	void *function;
	u8 state;
	bool is_queued;
};

struct rtnl_link_ops {
	const char *kind;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	char name[16];
	int ifindex;
	possible_net_t nd_net;
	const struct rtnl_link_ops *rtnl_link_ops;
};

struct napi_struct {
	unsigned long state;
	struct net_device *dev;
	struct hrtimer timer;
	struct task_struct *thread;
	unsigned long gro_flush_timeout;
	unsigned long irq_suspend_timeout;
	unsigned int defer_hard_irqs;
	unsigned int napi_id;
};

struct super_block {
	unsigned long s_magic;
};

struct inode {
	unsigned short i_mode;
	struct super_block *i_sb;
	unsigned long i_ino;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

struct file {
	void *private_data;
	struct inode *f_inode;
	struct path f_path;
};

struct eventpoll {
	unsigned int napi_id;
	u32 busy_poll_usecs;
	u16 busy_poll_budget;
	bool prefer_busy_poll;
	bool events_only;
};

struct linux_binprm {
	struct file *file;
};

struct in6_addr {
	union {
		__u8 u6_addr8[16];
		__be32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct bpf_prog_aux {
	u32 id;
};

struct bpf_prog {
	struct bpf_prog_aux *aux;
};

struct sock_reuseport {
	u16 num_socks;
	struct bpf_prog *prog;
};

struct socket;

typedef struct {
	int owned;
} socket_lock_t;

struct sk_buff_head {
	__u32 qlen;
};

struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	socket_lock_t sk_lock;
	struct socket *sk_socket;
	unsigned int sk_napi_id;
	u16 sk_busy_poll_budget;
	u16 sk_protocol;
	u8 sk_shutdown;
	struct sock_reuseport *sk_reuseport_cb;
};

struct msghdr {
	unsigned int msg_flags;
};

struct tcp_options_received {
	u32 rcv_tsval;
};

struct inet_connection_sock {
	struct {
		__u32 lrcvtime;
		__u16 rcv_mss;
	} icsk_ack;
};

/* What bpf_skc_to_tcp_sock() returns. */
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 rcv_nxt;
	u32 copied_seq;
	u32 write_seq;
	u32 snd_una;
	u32 lsndtime;
	u64 bytes_received;
	bool is_mptcp;
	u64 tcp_clock_cache;
	u32 rcv_wnd;
	u32 rcv_wup;
	u64 bytes_sent;
	u32 data_segs_in;
	u32 data_segs_out;
	u32 total_retrans;
	u32 rcv_ooopack;
	u32 dsack_dups;
	u32 srtt_us;
	u32 chrono_stat[3];
	u8 chrono_type : 2;
	struct tcp_options_received rx_opt;
};

struct udp_sock {
	struct sk_buff_head reader_queue;
};

struct tcp_skb_cb {
	__u32 seq;
	__u32 end_seq;
	__u16 tcp_flags;
};

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	char cb[48];
	unsigned int len;
	unsigned int data_len;
	__u16 transport_header;
	__u16 network_header;
	__u16 mac_header;
	unsigned char *head;
	unsigned char *data;
	int skb_iif;
	unsigned int napi_id;
	__u16 queue_mapping;
};

struct sk_reuseport_kern {
	struct sk_buff *skb;
	struct sock *sk;
};

struct socket {
	struct sock *sk;
	struct file *file;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file *file;
};

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct sock *sk;
	void *value;
};

#pragma clang attribute pop

#endif
