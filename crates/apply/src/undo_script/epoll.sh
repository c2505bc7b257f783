# epoll_params PID FD [USECS/BUDGET/PREFER[/FLAGS]]: sets the busy-poll parameters of another process's epoll, if
# given, and prints them; the flags only where there are any.
epoll_params() {
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
		echo "$1: gone"
	elif ! now=$(epoll_params "$2" "$4"); then
		stuck "$1" "cannot be read"
	elif ours "$1" "$now" "$5" "$6"; then
		seen "$1" "$(epoll_params "$2" "$4" "$6")" "$6"
	fi
}
