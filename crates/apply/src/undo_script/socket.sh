# socket_polling PID FD [USECS/PREFER[/BUDGET]]: sets how a receive from another process's socket busy-polls, if given, and
# prints USECS/PREFER. The kernel reports no budget.
socket_polling() {
	if command -v perl >/dev/null; then
		socket_polling_by_perl "$@"
	else
		socket_polling_by_python "$@"
	fi
}

# socket_polling_by_perl ...: Debian's perl is essential. From Linux 5.1 on, system calls have the same numbers everywhere.
socket_polling_by_perl() {
	perl - "$@" <<-'END'
		use strict;
		my ($SOL_SOCKET, $BUSY_POLL, $PREFER, $BUDGET) = (1, 46, 69, 70);
		my ($PIDFD_OPEN, $PIDFD_GETFD) = (434, 438);
		my ($pid, $fd, $set) = @ARGV;
		my $process = syscall($PIDFD_OPEN, $pid + 0, 0);
		my $number = $process < 0 ? -1 : syscall($PIDFD_GETFD, $process, $fd + 0, 0);
		die "pidfd_getfd: $!\n" if $number < 0;
		open(my $socket, "+<&=", $number) or die "socket: $!\n";
		if (defined $set) {
		    my ($usecs, $prefer, $budget) = split("/", $set);
		    my @options = ([$PREFER, $prefer], [$BUSY_POLL, $usecs]);
		    unshift(@options, [$BUDGET, $budget]) if defined $budget;
		    for my $option (@options) {
		        setsockopt($socket, $SOL_SOCKET, $option->[0], pack("i", $option->[1])) or die "setsockopt: $!\n";
		    }
		}
		my @now = map { unpack("i", getsockopt($socket, $SOL_SOCKET, $_) // die "getsockopt: $!\n") } ($BUSY_POLL, $PREFER);
		print join("/", @now), "\n";
	END
}

# socket_polling_by_python ...: the same.
socket_polling_by_python() {
	python3 - "$@" <<-'END'
		import ctypes, os, socket, sys
		BUSY_POLL, PREFER, BUDGET, SYS_PIDFD_GETFD = 46, 69, 70, 438
		libc = ctypes.CDLL(None, use_errno=True)
		pid, fd = int(sys.argv[1]), int(sys.argv[2])
		number = libc.syscall(SYS_PIDFD_GETFD, os.pidfd_open(pid), fd, 0)
		if number < 0:
		    sys.exit(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
		file = socket.socket(fileno=number)
		if len(sys.argv) > 3:
		    usecs, prefer, *budget = map(int, sys.argv[3].split("/"))
		    options = [(BUDGET, packets) for packets in budget] + [(PREFER, prefer), (BUSY_POLL, usecs)]
		    for option, value in options:
		        file.setsockopt(socket.SOL_SOCKET, option, value)
		print(*(file.getsockopt(socket.SOL_SOCKET, option) for option in (BUSY_POLL, PREFER)), sep="/")
	END
}

# polled WHAT PID STARTED FD INODE SET OLD: how a receive from a socket busy-polls. Its budget is put back with the others, and
# cannot be read to see whether another program has set it since.
polled() {
	if [ "$(started "/proc/$2/stat")" != "$3" ] || [ "$(readlink "/proc/$2/fd/$4")" != "socket:[$5]" ]; then
		printf '%s\n' "$1: gone"
		return
	fi
	set_without=$(printf '%s\n' "$6" | cut -d / -f 1,2)
	old_without=$(printf '%s\n' "$7" | cut -d / -f 1,2)
	if ! now=$(socket_polling "$2" "$4"); then
		stuck "$1" "cannot be read"
	elif ours "$1" "$now" "$set_without" "$old_without"; then
		seen "$1" "$(socket_polling "$2" "$4" "$7")" "$old_without"
	fi
}
