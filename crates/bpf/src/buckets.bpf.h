/* SPDX-License-Identifier: GPL-2.0 */
/* Computes the histogram bucket of a span. */
#ifndef __BUCKETS_BPF_H__
#define __BUCKETS_BPF_H__

#include "buckets.h"

/* Not inlined: otherwise, the verifier would follow every path again at each
 * call. */
__noinline __u32 bucket_of(__u64 span)
{
	__u32 rest, power = 0;

	if (span >> SPAN_BITS)
		return SPAN_BUCKETS - 1;
	if (span < 16)
		return span;
	rest = span;
	if (span >> 32) {
		power = 32;
		rest = span >> 32;
	}
	if (rest >= 1U << 16) {
		power += 16;
		rest >>= 16;
	}
	if (rest >= 1U << 8) {
		power += 8;
		rest >>= 8;
	}
	if (rest >= 1U << 4) {
		power += 4;
		rest >>= 4;
	}
	if (rest >= 1U << 2) {
		power += 2;
		rest >>= 2;
	}
	if (rest >= 2)
		power += 1;
	return ((power - 3) << 4) | ((__u32)(span >> (power - 4)) & 15);
}

#endif
