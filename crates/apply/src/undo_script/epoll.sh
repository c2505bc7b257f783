# epoll_params PID FD [USECS/BUDGET/PREFER[/FLAGS]]: sets the busy-poll parameters of another process's epoll, if
# given, and prints them; the flags only where there are any.
epoll_params() {
	if command -v perl >/dev/null; then
		epoll_params_by_perl "$@"
	else
		epoll_params_by_python "$@"
	fi
}

# epoll_params_by_perl ...: Debian's perl is essential. From Linux 5.1 on, system calls have the same numbers everywhere.
epoll_params_by_perl() {
	perl - "$@" <<-'END'
		use strict;
		my ($EPIOCSPARAMS, $EPIOCGPARAMS, $PIDFD_OPEN, $PIDFD_GETFD) = (0x40088A01, 0x80088A02, 434, 438);
		my ($pid, $fd, $set) = @ARGV;
		my $process = syscall($PIDFD_OPEN, $pid + 0, 0);
		my $number = $process < 0 ? -1 : syscall($PIDFD_GETFD, $process, $fd + 0, 0);
		die "pidfd_getfd: $!\n" if $number < 0;
		open(my $epoll, "+<&=", $number) or die "epoll: $!\n";
		if (defined $set) {
		    my $params = pack("LSCC", (split("/", $set), 0)[0 .. 3]);
		    ioctl($epoll, $EPIOCSPARAMS, $params) or die "EPIOCSPARAMS: $!\n";
		}
		ioctl($epoll, $EPIOCGPARAMS, my $params = "\0" x 8) or die "EPIOCGPARAMS: $!\n";
		my @params = unpack("LSCC", $params);
		pop @params unless $params[3];
		print join("/", @params), "\n";
	END
}

# epoll_params_by_python ...: the same.
epoll_params_by_python() {
	python3 - "$@" <<-'END'
		import ctypes, fcntl, os, struct, sys
		EPIOCSPARAMS, EPIOCGPARAMS, SYS_PIDFD_GETFD = 0x40088A01, 0x80088A02, 438
		libc = ctypes.CDLL(None, use_errno=True)
		pid, fd = int(sys.argv[1]), int(sys.argv[2])
		epoll = libc.syscall(SYS_PIDFD_GETFD, os.pidfd_open(pid), fd, 0)
		if epoll < 0:
		    sys.exit(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
		if len(sys.argv) > 3:
		    params = [*map(int, sys.argv[3].split("/")), 0][:4]
		    fcntl.ioctl(epoll, EPIOCSPARAMS, struct.pack("=IHBB", *params))
		*params, flags = struct.unpack("=IHBB", fcntl.ioctl(epoll, EPIOCGPARAMS, bytes(8)))
		print("/".join(map(str, params + [flags] * bool(flags))))
	END
}

# epoll WHAT PID STARTED FD SET OLD: the busy-poll parameters of an epoll.
epoll() {
	if [ "$(started "/proc/$2/stat")" != "$3" ] || [ "$(readlink "/proc/$2/fd/$4")" != 'anon_inode:[eventpoll]' ]; then
		printf '%s\n' "$1: gone"
	elif ! now=$(epoll_params "$2" "$4"); then
		stuck "$1" "cannot be read"
	elif ours "$1" "$now" "$5" "$6"; then
		seen "$1" "$(epoll_params "$2" "$4" "$6")" "$6"
	fi
}
