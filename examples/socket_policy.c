/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0 */
/*
 * Requests short response times for a listener; accepted connections inherit the policy.
 *
 *	cc -I include -o socket_policy examples/socket_policy.c && ./socket_policy
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <netpolicy.h>

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	return 1;
}

int main(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int accepted;

	if (listener < 0 || client < 0)
		return fail("socket");
	/* Continue after a failure: if netpolicy is not enabled here, delivery does not change. */
	if (netpolicy_set_socket(listener, NET_POLICY_LATENCY))
		fprintf(stderr, "no policy for the listener: %s\n", strerror(errno));
	if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length) ||
	    connect(client, (struct sockaddr *)&address, length))
		return fail("connect");
	accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (accepted < 0)
		return fail("accept");
	printf("listener %d accepted %d client %d\n", netpolicy_get_socket(listener),
	       netpolicy_get_socket(accepted), netpolicy_get_socket(client));
	return 0;
}
