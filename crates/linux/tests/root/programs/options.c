/*
 * Sets the kernel's own socket options, to values that the kernel accepts and to a value longer
 * than BPF programs can see.
 */
#include <errno.h>
#include <stdio.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

int main(void)
{
	static char whole[3 * 4096];
	int value = 40000, socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t length = sizeof(value);

	*(int *)whole = 1;
	printf("%d ", setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &value, length));
	printf("%d ", getsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &value, &length) ? -errno : value);
	printf("%d ", setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, whole, sizeof(whole)) ? -errno : 0);
	length = sizeof(whole);
	printf("%d ", getsockopt(socket_, IPPROTO_TCP, TCP_INFO, whole, &length) ? -errno : (int)length);
	printf("%d ", setsockopt(socket_, SOL_SOCKET, 0x4e51, &value, sizeof(value)) ? -errno : 0);
	length = sizeof(value);
	printf("%d\n", getsockopt(socket_, SOL_SOCKET, 0x4e51, &value, &length) ? -errno : 0);
	return 0;
}
