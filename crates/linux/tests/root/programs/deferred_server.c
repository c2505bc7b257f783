/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Echoes what it receives, one connection at a time. With TCP_DEFER_ACCEPT, the server accepts a
 * connection only when its first request arrives. The arguments are the server's address and port.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1, seconds = 30, connection;
	char bytes[64];
	ssize_t length;

	if (count != 3 || inet_pton(AF_INET, arguments[1], &address.sin_addr) != 1)
		return 2;
	address.sin_port = htons((unsigned short)atoi(arguments[2]));
	if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof(seconds)) ||
	    bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 64)) {
		perror("listen");
		return 1;
	}
	while ((connection = accept(listener, NULL, NULL)) >= 0) {
		while ((length = recv(connection, bytes, sizeof(bytes), 0)) > 0)
			if (send(connection, bytes, (size_t)length, MSG_NOSIGNAL) != length)
				break;
		close(connection);
	}
	perror("accept");
	return 1;
}
