/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A statically linked server: listens on a port of 127.0.0.1, adds the socket to an epoll and waits forever.
 * Prints the descriptors of the epoll and the socket.
 */
#include <netinet/in.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

int main(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct epoll_event event = { .events = EPOLLIN };
	int epoll = epoll_create1(0), listener = socket(AF_INET, SOCK_STREAM, 0);

	if (epoll < 0 || bind(listener, (struct sockaddr *)&any, sizeof(any)) < 0 || listen(listener, 8) < 0 ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) < 0) {
		perror("waiter");
		return 1;
	}
	printf("ready %d %d\n", epoll, listener);
	fflush(stdout);
	while (epoll_wait(epoll, &event, 1, -1) >= 0)
		;
	return 1;
}
