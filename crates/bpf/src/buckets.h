/* SPDX-License-Identifier: GPL-2.0 */
/* Shared by programs that count spans and the Rust that loads them. */
#ifndef __BUCKETS_H__
#define __BUCKETS_H__

/*
 * Spans are counted in buckets of a sixteenth of a power of two: 0 to 15
 * exactly, then 16 buckets for each power up to 2^SPAN_BITS ns (18 minutes).
 * The last bucket also holds anything longer.
 */
#define SPAN_BITS 40
#define SPAN_BUCKETS 592

#endif
