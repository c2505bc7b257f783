/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Forks a process for each connection, as PostgreSQL does. Each received line costs ten
 * milliseconds of CPU time and is answered with "done". After the line "reload", another process
 * takes over the connection and the previous one exits, as when nginx is reloaded; after the line
 * "die", the process is killed as soon as it has answered. The arguments are the address and port.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void works(void)
{
	struct timespec begun, now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begun);
	do
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	while ((now.tv_sec - begun.tv_sec) * 1000000000L + now.tv_nsec - begun.tv_nsec < 10000000L);
}

static void serves(int connection)
{
	char line[64];
	FILE *requests = fdopen(dup(connection), "r");

	while (requests && fgets(line, sizeof(line), requests)) {
		if (!strcmp(line, "reload\n")) {
			if (fork())
				_exit(0);
		}
		works();
		if (send(connection, "done\n", 5, MSG_NOSIGNAL) != 5)
			break;
		if (!strcmp(line, "die\n"))
			raise(SIGKILL);
	}
	_exit(0);
}

static void reaps(int signal)
{
	(void)signal;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

int main(int count, char **arguments)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1, connection;

	if (count != 3 || inet_pton(AF_INET, arguments[1], &address.sin_addr) != 1)
		return 2;
	address.sin_port = htons((unsigned short)atoi(arguments[2]));
	/* This process becomes the parent of orphaned grandchildren, so it must
	 * reap them. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	signal(SIGCHLD, reaps);
	if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 64)) {
		perror("listen");
		return 1;
	}
	while ((connection = accept(listener, NULL, NULL)) >= 0) {
		if (!fork())
			serves(connection);
		close(connection);
	}
	perror("accept");
	return 1;
}
