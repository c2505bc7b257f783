# ring_napi PID FD [off | USECS/PREFER]: sets the busy-poll parameters of another process's io_uring, if given,
# and prints them.
ring_napi() {
	if command -v perl >/dev/null; then
		ring_napi_by_perl "$@"
	else
		ring_napi_by_python "$@"
	fi
}

# ring_napi_by_perl ...: Debian's perl is essential. From Linux 5.1 on, system calls have the same numbers everywhere.
ring_napi_by_perl() {
	perl - "$@" <<-'END'
		use strict;
		my ($PIDFD_OPEN, $PIDFD_GETFD, $IO_URING_REGISTER) = (434, 438, 427);
		my ($IORING_REGISTER_NAPI, $IORING_UNREGISTER_NAPI) = (27, 28);
		my ($pid, $fd, $set) = @ARGV;
		if (defined $set) {
		    my $process = syscall($PIDFD_OPEN, $pid + 0, 0);
		    my $ring = $process < 0 ? -1 : syscall($PIDFD_GETFD, $process, $fd + 0, 0);
		    # A ring goes on polling the NAPIs in its list. Tracking by name (1) empties that, twice as one may come meanwhile.
		    my @empty = ($IORING_REGISTER_NAPI, 0, 0, 1);
		    my @steps = $set eq "off"
		        ? (\@empty, \@empty, [$IORING_UNREGISTER_NAPI, 0, 0, 0])
		        : ([$IORING_REGISTER_NAPI, split("/", $set), 0]);
		    for my $step (@steps) {
		        my ($operation, $usecs, $prefer, $tracking) = @$step;
		        my $napi = pack("LCx3Lx4", $usecs, $prefer, $tracking);
		        die "io_uring_register: $!\n" if $ring < 0 || syscall($IO_URING_REGISTER, $ring, $operation, $napi, 1) < 0;
		    }
		}
		open(my $fdinfo, "<", "/proc/$pid/fdinfo/$fd") or die "fdinfo: $!\n";
		my %info = map { /^(\S+):\s*(.*?)\s*$/ ? ($1, $2) : () } <$fdinfo>;
		if (($info{NAPI} // "") ne "enabled") {
		    print "off\n";
		} else {
		    print int($info{napi_busy_poll_dt} / 1000), "/", ($info{napi_prefer_busy_poll} // "") eq "true" ? 1 : 0, "\n";
		}
	END
}

# ring_napi_by_python ...: the same.
ring_napi_by_python() {
	python3 - "$@" <<-'END'
		import ctypes, os, struct, sys
		SYS_IO_URING_REGISTER, SYS_PIDFD_GETFD = 427, 438
		IORING_REGISTER_NAPI, IORING_UNREGISTER_NAPI = 27, 28
		IO_URING_NAPI_TRACKING_STATIC = 1
		libc = ctypes.CDLL(None, use_errno=True)
		pid, fd = int(sys.argv[1]), int(sys.argv[2])
		if len(sys.argv) > 3:
		    ring = libc.syscall(SYS_PIDFD_GETFD, os.pidfd_open(pid), fd, 0)
		    if sys.argv[3] == "off":
		        # A ring goes on polling the NAPIs in its list. Tracking by name empties that, twice as one may come meanwhile.
		        empty = (IORING_REGISTER_NAPI, 0, 0, IO_URING_NAPI_TRACKING_STATIC)
		        steps = [empty, empty, (IORING_UNREGISTER_NAPI, 0, 0, 0)]
		    else:
		        usecs, prefer = map(int, sys.argv[3].split("/"))
		        steps = [(IORING_REGISTER_NAPI, usecs, prefer, 0)]
		    for operation, usecs, prefer, tracking in steps:
		        napi = ctypes.create_string_buffer(struct.pack("=IB3xI4x", usecs, prefer, tracking), 16)
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
		printf '%s\n' "$1: gone"
	elif ! now=$(ring_napi "$2" "$4"); then
		stuck "$1" "cannot be read"
	elif ours "$1" "$now" "$5" "$6"; then
		seen "$1" "$(ring_napi "$2" "$4" "$6")" "$6"
	fi
}
