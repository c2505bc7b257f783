/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * An independent open-loop client for `netpolicy bench selfcheck`: it shares no code with the load
 * generator.
 *
 * Requests are due at absolute times of CLOCK_MONOTONIC, drawn in advance as one Poisson process,
 * each on a randomly drawn connection. A connection has at most one outstanding request. A request
 * that is due while its connection is busy waits, and its response time counts from its due time,
 * so that the delays of a slow server are included (no "coordinated omission"). The thread sleeps
 * in epoll_pwait2(2), which has nanosecond timeouts, until an answer arrives or a request is due.
 *
 * usage: open_loop ADDRESS PORT CPU CONNECTIONS RATE BYTES SEED BEGIN OPEN CLOSE [REQUEST] BYTES:
 * the length of an answer, and of a request if REQUEST is not given. BEGIN, OPEN, CLOSE: times of
 * CLOCK_MONOTONIC, in nanoseconds: when the first requests are due, and when the window opens and
 * closes. Prints one line of JSON, in nanoseconds, about the requests that were due in the window.
 * "late" is the time from when a request was due and its connection was free until the request was
 * sent.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 1024
#define BYTES_MAX 65536

struct request {
	uint64_t due;
	uint32_t connection;
	uint32_t next; /* the next request that waits for the same connection; 0 for none */
};

struct connection {
	int socket;
	uint32_t first, last; /* waiting requests, numbered from 1 */
	uint64_t due, sent;   /* the due time of the outstanding request */
	uint64_t free_since;  /* when the last answer was complete */
	uint32_t missing;     /* bytes of the answer that have not arrived yet; 0 if no request is outstanding */
};

static struct connection connections[CONNECTIONS_MAX];
static struct request *requests; /* from 1 on */
static uint64_t *from_due, *from_send, *late;
static size_t answered, sent_count;
static uint64_t in_window, answers_in_window;
static char request_bytes[BYTES_MAX], buffer[BYTES_MAX];
static uint32_t bytes, request_length;
static uint64_t opens, closes;

static void die(const char *what)
{
	fprintf(stderr, "open_loop: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t state;

/* splitmix64 */
static uint64_t draw(void)
{
	uint64_t z = (state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static int in_the_window(uint64_t due)
{
	return due >= opens && due < closes;
}

static void send_next(struct connection *c)
{
	struct request *request;
	ssize_t written;

	if (c->missing || !c->first)
		return;
	request = &requests[c->first];
	c->first = request->next;
	c->due = request->due;
	c->missing = bytes;
	c->sent = read_clock(CLOCK_MONOTONIC);
	if (in_the_window(c->due))
		late[sent_count++] = c->sent - (c->due > c->free_since ? c->due : c->free_since);
	written = send(c->socket, request_bytes, request_length, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (written != (ssize_t)request_length)
		die("send");
}

static void receive(struct connection *c)
{
	uint64_t now;
	ssize_t length = recv(c->socket, buffer, sizeof(buffer), MSG_DONTWAIT);

	if (length < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (length <= 0 || (uint32_t)length > c->missing)
		die("recv");
	c->missing -= (uint32_t)length;
	if (c->missing)
		return;
	now = read_clock(CLOCK_MONOTONIC);
	c->free_since = now;
	if (now >= opens && now < closes)
		answers_in_window++;
	if (in_the_window(c->due)) {
		from_due[answered] = now - c->due;
		from_send[answered] = now - c->sent;
		answered++;
	}
	send_next(c);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t quantile(const uint64_t *sorted, size_t count, double share)
{
	size_t at = (size_t)ceil(share * (double)count);

	return count ? sorted[at ? at - 1 : 0] : 0;
}

static void print(const char *name, uint64_t *values, size_t count)
{
	qsort(values, count, sizeof(*values), compare);
	printf("\"%s\":[%llu,%llu,%llu,%llu]", name, (unsigned long long)quantile(values, count, 0.5),
	       (unsigned long long)quantile(values, count, 0.9), (unsigned long long)quantile(values, count, 0.99),
	       (unsigned long long)quantile(values, count, 0.999));
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	uint64_t begin, now, stop, cpu_before = 0, cpu_after = 0, due;
	uint32_t count, number, all = 0, next = 1;
	double rate, gap;
	int epoll, one = 1;
	size_t room;

	if (argc != 11 && argc != 12) {
		fprintf(stderr, "open_loop: 10 or 11 arguments\n");
		return 2;
	}
	inet_pton(AF_INET, argv[1], &address.sin_addr);
	address.sin_port = htons((uint16_t)atoi(argv[2]));
	if (atoi(argv[3]) >= 0) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(atoi(argv[3]), &set);
		if (sched_setaffinity(0, sizeof(set), &set))
			die("sched_setaffinity");
	}
	count = (uint32_t)atoi(argv[4]);
	rate = atof(argv[5]);
	bytes = (uint32_t)atoi(argv[6]);
	state = strtoull(argv[7], NULL, 10);
	begin = strtoull(argv[8], NULL, 10);
	opens = strtoull(argv[9], NULL, 10);
	closes = strtoull(argv[10], NULL, 10);
	if (!count || count > CONNECTIONS_MAX || !bytes || bytes > BYTES_MAX || rate <= 0 || closes <= begin) {
		fprintf(stderr, "open_loop: an argument is out of range\n");
		return 2;
	}
	prctl(PR_SET_TIMERSLACK, 1);
	memset(request_bytes, 'x', sizeof(request_bytes));
	request_length = bytes;
	if (argc == 12) {
		request_length = (uint32_t)strnlen(argv[11], BYTES_MAX);
		memcpy(request_bytes, argv[11], request_length);
	}

	room = (size_t)(rate * (double)(closes - begin) / 1e9 * 1.5) + 10000;
	requests = calloc(room + 1, sizeof(*requests));
	from_due = calloc(room, sizeof(*from_due));
	from_send = calloc(room, sizeof(*from_send));
	late = calloc(room, sizeof(*late));
	if (!requests || !from_due || !from_send || !late)
		die("calloc");
	gap = 1e9 / rate;
	for (due = begin; all < room;) {
		double u = ((double)(draw() >> 11) + 1.0) / 9007199254740993.0;

		due += (uint64_t)(-gap * log(u));
		if (due >= closes)
			break;
		all++;
		requests[all].due = due;
		requests[all].connection = (uint32_t)(draw() % count);
		in_window += (uint64_t)in_the_window(due);
	}

	epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		die("epoll_create1");
	for (number = 0; number < count; number++) {
		struct epoll_event event = { .events = EPOLLIN, .data.u32 = number };
		int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (s < 0 || connect(s, (struct sockaddr *)&address, sizeof(address)))
			die("connect");
		setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		connections[number].socket = s;
		if (epoll_ctl(epoll, EPOLL_CTL_ADD, s, &event))
			die("epoll_ctl");
	}

	stop = closes + 500000000u;
	for (;;) {
		struct epoll_event events[256];
		struct timespec wait;
		uint64_t until;
		long ready;
		int i;

		now = read_clock(CLOCK_MONOTONIC);
		if (!cpu_before && now >= opens)
			cpu_before = read_clock(CLOCK_PROCESS_CPUTIME_ID);
		if (!cpu_after && now >= closes)
			cpu_after = read_clock(CLOCK_PROCESS_CPUTIME_ID);
		while (next <= all && requests[next].due <= now) {
			struct connection *c = &connections[requests[next].connection];

			if (c->first)
				requests[c->last].next = next;
			else
				c->first = next;
			c->last = next;
			next++;
			send_next(c);
		}
		if (now >= stop || (next > all && now >= closes && answered >= in_window))
			break;
		until = next <= all ? requests[next].due : now < closes ? closes : stop;
		now = read_clock(CLOCK_MONOTONIC);
		until = until > now ? until - now : 0;
		wait.tv_sec = (time_t)(until / 1000000000u);
		wait.tv_nsec = (long)(until % 1000000000u);
		ready = syscall(SYS_epoll_pwait2, epoll, events, 256, &wait, NULL, 0);
		if (ready < 0 && errno != EINTR)
			die("epoll_pwait2");
		for (i = 0; i < ready; i++)
			receive(&connections[events[i].data.u32]);
	}

	printf("{\"due\":%llu,\"answered\":%llu,\"answers_in_window\":%llu,\"cpu\":%llu,",
	       (unsigned long long)in_window, (unsigned long long)answered,
	       (unsigned long long)answers_in_window, (unsigned long long)(cpu_after - cpu_before));
	print("late", late, sent_count);
	putchar(',');
	print("from_send", from_send, answered);
	putchar(',');
	print("from_due", from_due, answered);
	printf("}\n");
	return 0;
}
