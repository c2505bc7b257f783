/* SPDX-License-Identifier: GPL-2.0 */
/* Redirects every packet to the peer of a veth, which may be in another namespace, as Cilium's host
 * routing does. */
#define SEC(name) __attribute__((section(name), used))

struct __sk_buff;
static long (*bpf_redirect_peer)(unsigned int ifindex, unsigned long long flags) = (void *)155;

SEC("tc") int to_peer(struct __sk_buff *skb)
{
	return bpf_redirect_peer(IFINDEX, 0);
}

char _license[] SEC("license") = "GPL";
