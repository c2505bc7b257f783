/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Detects where requests begin, in protocols that can be recognised by their
 * first bytes.
 *
 * The first bytes of a segment show whether the segment begins or continues a
 * request. The requests in an arrival are counted by message length if lengths
 * are not encrypted (HTTP/2, PostgreSQL, TLS records), and by lines (HTTP/1,
 * RESP, memcached) on connections with several outstanding requests.
 */
#ifndef __LIVE_PROTOCOL_H__
#define __LIVE_PROTOCOL_H__

#include "state.bpf.h"

/* The number of messages after which an undetected protocol counts as unknown. */
#define LOOKS_MAX 4

/*
 * On a connection whose arrivals have each held a single request, the lines of only one arrival in
 * this many are counted. A power of two.
 */
#define LINES_EVERY 8

/* The maximum number of bytes of an arrival in which lines are counted; the count is extrapolated
 * to the rest. */
#define LINES_BYTES 4096

/* The number of bytes checked per step. */
#define LINE_STEP 16

/* The maximum number of messages that are parsed in one arrival. */
#define MESSAGES_MAX 256

/*
 * The number of consecutive answered arrivals that begin no request after which
 * the connection's protocol counts as a different one, for example on an
 * upgraded HTTP/1 connection.
 */
#define STRAYS_MAX 8

/* Used to read non-linear skbs. Linux 6.12: "bpf: Allow bpf_dynptr_from_skb() for tp_btf". */
struct bpf_dynptr {
	__u64 opaque[2];
} __attribute__((aligned(8)));

/* Only the declaration of bpf_dynptr_from_skb() uses this type; the argument is really a struct
 * sk_buff. */
struct __sk_buff {
};

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags, struct bpf_dynptr *ptr) __ksym __weak;

/* The maximum length of a message that is parsed. */
#define MESSAGE_MAX (1 << 30)

#define HTTP2_HEADERS 1
#define HTTP2_HEADER_BYTES 9
#define HTTP2_PREFACE_BYTES 24

#define TLS_HEADER_BYTES 5
#define TLS_CHANGE_CIPHER_SPEC 20
#define TLS_APPLICATION_DATA 23

#define POSTGRESQL_STARTUP_MAX 10000

/* An arrival: the inputs of its classification, and the results. */
struct look {
	__u32 from;	/* offset of its bytes in the segment */
	__u32 length;
	__u8 fresh;	/* no exchange is outstanding */
	__u8 in_order;	/* the segment follows the last one seen */
	__u16 requests;	/* requests that begin in it */
	__u8 begins;	/* the first bytes begin a request */
	__u8 incomplete;	/* the last of these requests is incomplete */
	__u8 counts;	/* the requests count because the arrival begins or continues an exchange */
	__u8 pad;
};

#define WORD(a, b, c, d) ((__u32)(a) | (__u32)(b) << 8 | (__u32)(c) << 16 | (__u32)(d) << 24)

/* The number of an arrival's first bytes that are checked. */
#define LOOK_BYTES 12

struct start {
	__u8 bytes[LOOK_BYTES];
};

/* Reads four bytes in network byte order. */
static __always_inline __u32 word_at(const __u8 *bytes)
{
	return WORD(bytes[0], bytes[1], bytes[2], bytes[3]);
}

static __always_inline __u32 length_at(const __u8 *bytes)
{
	return (__u32)bytes[0] << 24 | (__u32)bytes[1] << 16 | (__u32)bytes[2] << 8 | bytes[3];
}

static __always_inline bool begins_http1(__u32 word)
{
	switch (word) {
	case WORD('G', 'E', 'T', ' '):
	case WORD('P', 'O', 'S', 'T'):
	case WORD('P', 'U', 'T', ' '):
	case WORD('H', 'E', 'A', 'D'):
	case WORD('D', 'E', 'L', 'E'):
	case WORD('P', 'A', 'T', 'C'):
	case WORD('O', 'P', 'T', 'I'):
	case WORD('P', 'R', 'O', 'P'):
	case WORD('R', 'E', 'P', 'O'):
		return true;
	}
	return false;
}

static __always_inline bool begins_memcached(__u32 word)
{
	switch (word) {
	case WORD('g', 'e', 't', ' '):
	case WORD('g', 'e', 't', 's'):
	case WORD('s', 'e', 't', ' '):
	case WORD('a', 'd', 'd', ' '):
	case WORD('r', 'e', 'p', 'l'):
	case WORD('a', 'p', 'p', 'e'):
	case WORD('p', 'r', 'e', 'p'):
	case WORD('c', 'a', 's', ' '):
	case WORD('d', 'e', 'l', 'e'):
	case WORD('i', 'n', 'c', 'r'):
	case WORD('d', 'e', 'c', 'r'):
	case WORD('t', 'o', 'u', 'c'):
	case WORD('g', 'a', 't', ' '):
	case WORD('g', 'a', 't', 's'):
	case WORD('s', 't', 'a', 't'):
	case WORD('v', 'e', 'r', 's'):
	case WORD('v', 'e', 'r', 'b'):
	case WORD('f', 'l', 'u', 's'):
		return true;
	}
	return (word & 0xff) == 'm' && word >> 16 == ('n' << 8 | ' ') ? false :
	       (word & 0xff00ff) == ('m' | ' ' << 16);
}

static __always_inline bool begins_resp(__u32 word)
{
	__u8 digit = word >> 8;

	return (word & 0xff) == '*' && digit >= '1' && digit <= '9';
}

/* A global function, unlike the other functions in this file, so that the verifier checks it once
 * and separately. */
__noinline int begins(__u32 protocol, __u32 word)
{
	if (protocol == LIVE_HTTP1)
		return begins_http1(word);
	if (protocol == LIVE_RESP)
		return begins_resp(word);
	return begins_memcached(word);
}

static __always_inline bool is_postgresql_type(__u8 type)
{
	switch (type) {
	case 'Q': case 'P': case 'B': case 'D': case 'E': case 'S': case 'C': case 'F': case 'H': case 'X':
	case 'p': case 'd': case 'c': case 'f':
		return true;
	}
	return false;
}

/*
 * Returns whether these bytes, a length and a code, are a PostgreSQL startup
 * message or a request for encryption or cancellation.
 */
static __always_inline bool starts_postgresql(const __u8 *bytes)
{
	__u32 length = length_at(bytes), code = length_at(bytes + 4);

	return length >= 8 && length < POSTGRESQL_STARTUP_MAX &&
	       (code >> 16 == 3 || (code >= 80877102 && code <= 80877104));
}

__noinline int protocol_of(const struct start *start, __u32 length)
{
	const __u8 *bytes;
	__u32 word, size;

	if (!start)
		return LIVE_OTHER;
	bytes = start->bytes;
	word = word_at(bytes);

	if (begins_http1(word))
		return LIVE_HTTP1;
	if (word == WORD('P', 'R', 'I', ' '))
		return LIVE_HTTP2;
	if (begins_resp(word))
		return LIVE_RESP;
	if (begins_memcached(word))
		return LIVE_MEMCACHED;
	if (bytes[0] >= TLS_CHANGE_CIPHER_SPEC && bytes[0] <= TLS_APPLICATION_DATA && bytes[1] == 3 && bytes[2] <= 4)
		return LIVE_TLS;
	if (length >= 8 && starts_postgresql(bytes))
		return LIVE_POSTGRESQL;
	size = length_at(bytes + 1);
	if (is_postgresql_type(bytes[0]) && !bytes[1] && size >= 4 && size < 1 << 24)
		return LIVE_POSTGRESQL;
	/*
	 * On a connection that is older than the meter: accept an HTTP/2 frame
	 * that ends with the arrival or is followed by another frame.
	 */
	size = (__u32)bytes[0] << 16 | (__u32)bytes[1] << 8 | bytes[2];
	if (length >= HTTP2_HEADER_BYTES && bytes[3] == HTTP2_HEADERS && size && size < 16384 && bytes[4] & 4 &&
	    !(bytes[5] & 0x80) && bytes[8] & 1)
		return LIVE_HTTP2;
	return LIVE_OTHER;
}

/* The buffer in which lines are counted, and the counts; one per CPU. */
struct lines {
	__u32 length, protocol;
	__u32 found;	/* requests that begin after the first line */
	__u32 heads;	/* empty lines: ends of HTTP/1 headers */
	__u32 first_head;	/* the text after the first empty line is a body */
	__u8 bytes[LINES_BYTES + LINE_STEP];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lines);
} scratch SEC(".maps");

/* Classifies the line that begins after the line end at @at. */
__noinline int line_ends(struct lines *lines, __u32 at)
{
	if (!lines || at < 3 || at >= LINES_BYTES)
		return 0;
	/* An empty line: @at is the last byte of CR LF CR LF. */
	if (lines->bytes[(at - 2) & (LINES_BYTES - 1)] == '\n')
		lines->heads++;
	else if (lines->protocol == LIVE_HTTP1)
		return 0;
	if (at + 4 < lines->length && begins(lines->protocol, word_at(&lines->bytes[(at + 1) & (LINES_BYTES - 1)])))
		lines->found++;
	return 0;
}

static long looks_for_lines(__u32 step, void *context)
{
	struct lines *lines = *(struct lines **)context;
	__u32 at = step * LINE_STEP, i;

	if (at >= lines->length)
		return 1;
	if (at > LINES_BYTES - LINE_STEP || (lines->first_head && lines->heads))
		return 1;
#pragma unroll
	for (i = 0; i < LINE_STEP; i++) {
		if (lines->bytes[at + i] == '\n')
			line_ends(lines, at + i);
	}
	return 0;
}

/* Counts lines in the buffered bytes. */
__noinline int look_for_lines(struct lines *lines)
{
	if (lines)
		bpf_loop(LINES_BYTES / LINE_STEP, looks_for_lines, &lines, 0);
	return 0;
}

/* Counts the requests that begin in these lines, including the first. */
static __noinline __u32 count_lines(struct sk_buff *skb, struct look *look, __u32 protocol, __u32 has_body,
				    __u32 *heads)
{
	__u32 length = look->length;
	struct bpf_dynptr data;
	struct lines *lines;
	__u32 only = 0, some = length > LINES_BYTES ? LINES_BYTES : length, found;

	lines = bpf_map_lookup_elem(&scratch, &only);
	if (!lines || bpf_dynptr_from_skb((struct __sk_buff *)skb, 0, &data))
		return 1;
	if (some < 4 || some > LINES_BYTES)
		return 1;
	if (bpf_dynptr_read(lines->bytes, some, &data, look->from, 0))
		return 1;
	/* Clear the buffer, so that line ends of an earlier arrival are not counted. */
	__builtin_memset(lines->bytes + some, 0, LINE_STEP);
	lines->length = some;
	lines->protocol = protocol;
	lines->found = 0;
	lines->heads = 0;
	lines->first_head = has_body;
	look_for_lines(lines);
	*heads = lines->heads;
	found = lines->found;
	return 1 + (length > some && !has_body ? (__u64)found * length / some : found);
}

/* The state of a parser that steps from message to message by their lengths. */
struct messages {
	struct sk_buff *skb;
	__u32 from, at, length, protocol;
	__u32 found;	/* requests */
	__u32 rest;	/* messages that are parts of requests, but begin none */
	__u32 after_cipher;	/* TLS: the next data record is the client's Finished */
	__u32 lost;	/* the arrival ends within a message header */
};

static __always_inline __u32 head_bytes(__u32 protocol)
{
	return protocol == LIVE_HTTP2 ? HTTP2_HEADER_BYTES : TLS_HEADER_BYTES;
}

/* The kind of a message, as flags above the 32 bits of its length. */
#define IS_REQUEST (1ULL << 32)
#define IS_PART (1ULL << 33)
#define IS_CIPHER (1ULL << 34)

/* Returns the length and the kind of a message from its first nine bytes. */
__noinline __u64 message_of(const struct start *start, __u32 protocol, __u32 after_cipher)
{
	const __u8 *bytes;

	if (!start)
		return 0;
	bytes = start->bytes;
	if (protocol == LIVE_TLS)
		return (TLS_HEADER_BYTES + ((__u32)bytes[3] << 8 | bytes[4])) |
		       (bytes[0] == TLS_APPLICATION_DATA && !after_cipher ? IS_REQUEST : 0) |
		       (bytes[0] == TLS_CHANGE_CIPHER_SPEC ? IS_CIPHER : 0);
	if (protocol == LIVE_HTTP2) {
		if (word_at(bytes) == WORD('P', 'R', 'I', ' '))
			return HTTP2_PREFACE_BYTES;
		return (HTTP2_HEADER_BYTES + ((__u32)bytes[0] << 16 | (__u32)bytes[1] << 8 | bytes[2])) |
		       (bytes[3] == HTTP2_HEADERS ? IS_REQUEST : !bytes[3] ? IS_PART : 0);
	}
	/* A startup message has no type. */
	if (!bytes[0])
		return length_at(bytes);
	if (bytes[0] == 'Q' || bytes[0] == 'S' || bytes[0] == 'F')
		return (1 + length_at(bytes + 1)) | IS_REQUEST;
	return (1 + length_at(bytes + 1)) | (bytes[0] != 'X' && bytes[0] != 'p' ? IS_PART : 0);
}

static long follow_message(__u32 step, void *context)
{
	struct messages *all = context;
	struct bpf_dynptr data;
	struct start start = {};
	__u32 head = head_bytes(all->protocol), size;
	__u64 message;

	if (all->at >= all->length)
		return 1;
	if (all->at + head > all->length) {
		all->lost = 1;
		return 1;
	}
	if (bpf_dynptr_from_skb((struct __sk_buff *)all->skb, 0, &data))
		return 1;
	if (bpf_dynptr_read(start.bytes, head, &data, all->from + all->at, 0))
		return 1;
	message = message_of(&start, all->protocol, all->after_cipher);
	all->found += !!(message & IS_REQUEST);
	all->rest += !!(message & IS_PART);
	all->after_cipher = !!(message & IS_CIPHER);
	size = message;
	all->at += size < 4 ? 4 : size > MESSAGE_MAX ? MESSAGE_MAX : size;
	return 0;
}

/* Counts requests in protocols whose messages have a length prefix. */
static __always_inline void looks_at_messages(struct socket_state *state, struct sk_buff *skb, struct look *look)
{
	__u32 length = look->length;
	struct messages all = {
		.skb = skb,
		.from = look->from,
		.at = look->in_order ? state->skip : 0,
		.length = length,
		.protocol = state->protocol,
	};
	bool begins = !all.at, fresh = look->fresh;

	if (all.at >= length) {
		state->skip = all.at - length;
		look->counts = !fresh;
		look->incomplete = state->skip && state->protocol != LIVE_HTTP2;
		return;
	}
	bpf_loop(MESSAGES_MAX, follow_message, &all, 0);
	state->skip = all.lost || all.at < length ? 0 : all.at - length;
	look->requests = all.found > 0xffff ? 0xffff : all.found;
	look->begins = begins && (all.found || all.rest);
	/* If the arrival contains only the rest of an earlier message, it
	 * continues that message's exchange. */
	look->counts = all.found || all.rest || (!begins && !fresh);
	look->incomplete = (state->skip || all.lost) && state->protocol != LIVE_HTTP2;
}

/* Counts requests in line-based protocols. */
static __always_inline void looks_at_lines(struct socket_state *state, struct sk_buff *skb, __u32 word, __u32 end,
					   struct look *look)
{
	__u32 heads = 0, count = 1;
	bool has_body, http = state->protocol == LIVE_HTTP1;

	look->begins = begins(state->protocol, word);
	if (!look->begins && look->fresh) {
		/*
		 * The arrival continues a request that was already answered. If
		 * this happens repeatedly, the connection now uses another
		 * protocol.
		 */
		look->counts = state->strays >= STRAYS_MAX;
		state->strayed = 1;
		if (look->counts) {
			state->protocol = LIVE_OTHER;
			state->looked = LOOKS_MAX;
			look->begins = look->requests = 1;
		}
		return;
	}
	if (look->begins)
		state->strays = state->strayed = 0;
	has_body = http && look->begins && (word == WORD('P', 'O', 'S', 'T') || word == WORD('P', 'U', 'T', ' ') ||
					    word == WORD('P', 'A', 'T', 'C'));
	state->in_one++;
	/*
	 * An arrival that is longer than any arrival with a single request so far may hold several
	 * requests.
	 */
	if (state->pipelined || has_body || (look->begins && look->length > state->one_bytes) ||
	    !(state->in_one & (LINES_EVERY - 1))) {
		count = count_lines(skb, look, state->protocol, has_body, &heads);
		if (count > 1) {
			state->pipelined = 1;
			state->in_one = 0;
		} else if (look->begins && look->length > state->one_bytes) {
			state->one_bytes = look->length;
		}
		if (state->in_one > 4 * LINES_EVERY)
			state->pipelined = 0;
	}
	look->requests = count - !look->begins;
	if (http)
		look->incomplete = !heads && end != WORD('\r', '\n', '\r', '\n');
	else
		look->incomplete = end >> 24 != '\n';
}

/* Classifies an arrival. */
static __noinline int looks(struct socket_state *state, struct sk_buff *skb, struct look *look)
{
	__u32 from = look->from, length = look->length;
	bool fresh = look->fresh;
	union {
		struct start start;
		__u32 words[3];
	} first = {};
	__u32 some = length > LOOK_BYTES ? LOOK_BYTES : length, end = 0;
	struct in6_addr *bytes;
	struct bpf_dynptr data;

	look->counts = 1;
	look->begins = look->requests = fresh;
	if (!bpf_ksym_exists(bpf_dynptr_from_skb) || (state->protocol == LIVE_OTHER && state->looked >= LOOKS_MAX))
		return 0;
	if (length >= LOOK_BYTES && skb->len - skb->data_len >= from + length) {
		/* As usual, the whole arrival is linear, so it can be read without a helper. */
		bytes = sixteen_bytes(skb->data + from);
		first.words[0] = bytes->in6_u.u6_addr32[0];
		first.words[1] = bytes->in6_u.u6_addr32[1];
		first.words[2] = bytes->in6_u.u6_addr32[2];
		bytes = sixteen_bytes(skb->data + from + length - 4);
		end = bytes->in6_u.u6_addr32[0];
	} else {
		if (bpf_dynptr_from_skb((struct __sk_buff *)skb, 0, &data))
			return 0;
		if (some < 1 || some > LOOK_BYTES || bpf_dynptr_read(&first.start, some, &data, from, 0))
			return 0;
		if (length >= 4)
			bpf_dynptr_read(&end, 4, &data, from + length - 4, 0);
	}
	if (state->protocol == LIVE_OTHER) {
		if (!fresh)
			return 0;
		state->looked++;
		state->protocol = protocol_of(&first.start, length);
		state->skip = 0;
		if (state->protocol == LIVE_OTHER)
			return 0;
	}
	look->begins = look->requests = 0;
	if (state->protocol == LIVE_TLS || state->protocol == LIVE_HTTP2 || state->protocol == LIVE_POSTGRESQL) {
		looks_at_messages(state, skb, look);
		return 0;
	}
	looks_at_lines(state, skb, word_at(first.start.bytes), word_at((__u8 *)&end), look);
	return 0;
}

#endif
