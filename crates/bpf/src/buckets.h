/* SPDX-License-Identifier: GPL-2.0 */
/* What programs that count spans share with the Rust beside them. */
#ifndef __BUCKETS_H__
#define __BUCKETS_H__

/*
 * Spans are counted in buckets of a sixteenth of a power of two: 0 to 15 by
 * themselves, then 16 buckets for each power up to 2^32. The last one holds
 * whatever is longer.
 */
#define SPAN_BUCKETS 464

#endif
