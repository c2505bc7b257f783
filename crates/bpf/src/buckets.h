/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by the programs that count time spans and the Rust modules that load
 * them.
 */
#ifndef __BUCKETS_H__
#define __BUCKETS_H__

/*
 * Spans are counted in buckets. Spans of 0 to 15 ns have one bucket each;
 * longer ones share 16 buckets per power of two, up to 2^SPAN_BITS ns (18
 * minutes). The last bucket also holds all longer spans.
 */
#define SPAN_BITS 40
#define SPAN_BUCKETS 592

#endif
