/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Shared by the programs that count spans of time and the Rust modules that
 * load them.
 */
#ifndef __BUCKETS_H__
#define __BUCKETS_H__

/*
 * Spans are counted in buckets, 16 for each power of two: spans of 0 to 15 ns
 * have a bucket each, and longer ones share 16 buckets per power up to
 * 2^SPAN_BITS ns (18 minutes). The last bucket also holds all longer spans.
 */
#define SPAN_BITS 40
#define SPAN_BUCKETS 592

#endif
