// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Holds one of the process's own locks indefinitely: the kernel copies to or from a page of a FUSE
 * file whose server, the parent, does not answer. Needs no privilege.
 *
 * usage: hang DIRECTORY epoll|send|ring DEVICE DEVICE is /dev/fuse, or a device node with its
 * number that everyone may open, as on most distributions. Prints "ready PID FD" when the lock is
 * held: the process, and its epoll or socket. "ring" prints it earlier: the process has many
 * io_urings, and holds the lock of the last one as soon as the first one polls. At the end of its
 * input the server exits, and the kernel releases the process.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define CHILD_FD 50
#define RINGS 64

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		fail(path);
	close(fd);
}

static int polls(int ring)
{
	char path[64], text[4096];
	int file;
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", ring);
	file = open(path, O_RDONLY);
	length = read(file, text, sizeof(text) - 1);
	close(file);
	text[length > 0 ? length : 0] = 0;
	return strstr(text, "NAPI:\tenabled") != NULL;
}

/*
 * Waits until the first io_uring polls, then makes the kernel read the page while it holds the lock of the
 * last one.
 */
static void hang_ring(void *page)
{
	char params[120];

	for (int ring = CHILD_FD; ring < CHILD_FD + RINGS; ring++) {
		int made;

		memset(params, 0, sizeof(params));
		made = syscall(SYS_io_uring_setup, 4, params);
		if (made < 0 || dup2(made, ring) < 0)
			fail("io_uring");
		close(made);
	}
	printf("ready %d %d\n", getpid(), CHILD_FD);
	fflush(stdout);
	while (!polls(CHILD_FD))
		;
	/* IORING_REGISTER_BUFFERS */
	syscall(SYS_io_uring_register, CHILD_FD + RINGS - 1, 0, page, 1);
}

/* Makes the system call that does not return. */
static void hang(const char *directory, const char *kind)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	int epoll = epoll_create1(0), pipes[2], file;
	struct epoll_event event = { .events = EPOLLIN };
	char path[512];
	void *page;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (listener < 0 || client < 0 || bind(listener, (void *)&address, length) || listen(listener, 1) ||
	    getsockname(listener, (void *)&address, &length) || connect(client, (void *)&address, length))
		fail("sockets");
	if (epoll < 0 || pipe(pipes) || write(pipes[1], "x", 1) != 1 ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event))
		fail("epoll");
	snprintf(path, sizeof(path), "%s/page", directory);
	file = open(path, O_RDWR);
	if (file < 0)
		fail(path);
	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	if (page == MAP_FAILED)
		fail("mmap");
	if (!strcmp(kind, "epoll")) {
		dup2(epoll, CHILD_FD);
		epoll_wait(CHILD_FD, page, 1, -1);
	} else if (!strcmp(kind, "ring")) {
		hang_ring(page);
	} else {
		dup2(client, CHILD_FD);
		send(CHILD_FD, page, PAGE, 0);
	}
	exit(0);
}

static void answer(int fuse, __u64 unique, int error, const void *body, size_t length)
{
	struct fuse_out_header head = { .len = sizeof(head) + length, .error = error, .unique = unique };
	char message[512];

	memcpy(message, &head, sizeof(head));
	if (length)
		memcpy(message + sizeof(head), body, length);
	if (write(fuse, message, head.len) < 0 && errno != ENOENT)
		fail("answer");
}

static struct fuse_attr attributes(__u64 inode)
{
	struct fuse_attr attr = { .ino = inode, .nlink = 1, .blksize = PAGE };

	attr.mode = inode == 1 ? S_IFDIR | 0755 : S_IFREG | 0644;
	attr.size = inode == 1 ? 0 : PAGE;
	return attr;
}

/* Answers every request except reads. */
static void serve(int fuse, pid_t child, int *said)
{
	static char request[1 << 17];
	ssize_t length = read(fuse, request, sizeof(request));
	struct fuse_in_header *head = (void *)request;

	if (length < (ssize_t)sizeof(*head))
		return;
	switch (head->opcode) {
	case FUSE_INIT: {
		struct fuse_init_out out = { .major = 7, .minor = 31, .max_write = PAGE };

		return answer(fuse, head->unique, 0, &out, sizeof(out));
	}
	case FUSE_LOOKUP: {
		struct fuse_entry_out out = { .nodeid = 2, .attr = attributes(2) };

		return answer(fuse, head->unique, 0, &out, sizeof(out));
	}
	case FUSE_GETATTR: {
		struct fuse_attr_out out = { .attr = attributes(head->nodeid) };

		return answer(fuse, head->unique, 0, &out, sizeof(out));
	}
	case FUSE_OPEN: {
		struct fuse_open_out out = { .fh = 1 };

		return answer(fuse, head->unique, 0, &out, sizeof(out));
	}
	case FUSE_READ:
		if (!*said) {
			*said = 1;
			printf("ready %d %d\n", child, CHILD_FD);
			fflush(stdout);
		}
		return; /* never */
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	default:
		return answer(fuse, head->unique, -ENOSYS, NULL, 0);
	}
}

int main(int count, char **arguments)
{
	uid_t uid = getuid();
	gid_t gid = getgid();
	char text[128];
	int fuse, said = count == 4 && !strcmp(arguments[2], "ring");
	pid_t child;

	if (count != 4)
		return 2;
	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		fail("unshare");
	put("/proc/self/setgroups", "deny");
	snprintf(text, sizeof(text), "0 %d 1", uid);
	put("/proc/self/uid_map", text);
	snprintf(text, sizeof(text), "0 %d 1", gid);
	put("/proc/self/gid_map", text);
	fuse = open(arguments[3], O_RDWR | O_CLOEXEC);
	if (fuse < 0)
		fail(arguments[3]);
	snprintf(text, sizeof(text), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
	if (mount("hang", arguments[1], "fuse", MS_NOSUID | MS_NODEV, text))
		fail("mount");
	child = fork();
	if (child < 0)
		fail("fork");
	if (!child) {
		/* Only the server may hold the FUSE descriptor: the kernel aborts pending requests
		 * when the last copy is closed. */
		close(fuse);
		hang(arguments[1], arguments[2]);
	}
	for (;;) {
		struct pollfd ready[] = { { .fd = fuse, .events = POLLIN }, { .fd = 0, .events = POLLIN } };

		if (poll(ready, 2, -1) < 0)
			break;
		if (ready[1].revents)
			break;
		if (ready[0].revents & POLLIN)
			serve(fuse, child, &said);
		if (ready[0].revents & (POLLERR | POLLHUP))
			break;
	}
	/* Close the FUSE descriptor first, which releases the process that waits for an answer. */
	close(fuse);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
