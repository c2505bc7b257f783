# ring_napi PID FD [off | USECS/PREFER]: sets the busy-poll parameters of another process's io_uring, if given,
# and prints them.
ring_napi() {
	python3 - "$@" <<-'END'
		import ctypes, os, struct, sys
		SYS_IO_URING_REGISTER, SYS_PIDFD_GETFD = 427, 438
		IORING_REGISTER_NAPI, IORING_UNREGISTER_NAPI = 27, 28
		libc = ctypes.CDLL(None, use_errno=True)
		pid, fd = int(sys.argv[1]), int(sys.argv[2])
		if len(sys.argv) > 3:
		    ring = libc.syscall(SYS_PIDFD_GETFD, os.pidfd_open(pid), fd, 0)
		    off = sys.argv[3] == "off"
		    usecs, prefer = (0, 0) if off else map(int, sys.argv[3].split("/"))
		    operation = IORING_UNREGISTER_NAPI if off else IORING_REGISTER_NAPI
		    napi = ctypes.create_string_buffer(struct.pack("=IB11x", usecs, prefer), 16)
		    if ring < 0 or libc.syscall(SYS_IO_URING_REGISTER, ring, operation, napi, 1) < 0:
		        sys.exit(f"io_uring_register: {os.strerror(ctypes.get_errno())}")
		fdinfo = dict(line.strip().split(":", 1) for line in open(f"/proc/{pid}/fdinfo/{fd}") if ":" in line)
		if fdinfo.get("NAPI", "").strip() != "enabled":
		    print("off")
		else:
		    usecs = int(fdinfo["napi_busy_poll_dt"]) // 1000
		    prefer = int(fdinfo.get("napi_prefer_busy_poll", "").strip() == "true")
		    print(f"{usecs}/{prefer}")
	END
}

# ring WHAT PID STARTED FD SET OLD: the busy-poll parameters of an io_uring.
ring() {
	if [ "$(started "/proc/$2/stat")" != "$3" ] || [ "$(readlink "/proc/$2/fd/$4")" != 'anon_inode:[io_uring]' ]; then
		echo "$1: gone"
	elif ! now=$(ring_napi "$2" "$4"); then
		stuck "$1" "cannot be read"
	elif ours "$1" "$now" "$5" "$6"; then
		seen "$1" "$(ring_napi "$2" "$4" "$6")" "$6"
	fi
}
