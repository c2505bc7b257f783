# ring_in_perl: the busy-poll parameters of an io_uring, "off" or USECS/PREFER.
ring_in_perl() {
	cat <<-'END'
		my ($IO_URING_REGISTER, $IORING_REGISTER_NAPI, $IORING_UNREGISTER_NAPI) = (427, 27, 28);
		if (defined $set) {
		    # A ring continues to poll the NAPIs in its list. Static tracking (1) empties the list; twice,
		    # because a request may add a NAPI meanwhile.
		    my @empty = ($IORING_REGISTER_NAPI, 0, 0, 1);
		    my @steps = $set eq "off"
		        ? (\@empty, \@empty, [$IORING_UNREGISTER_NAPI, 0, 0, 0])
		        : ([$IORING_REGISTER_NAPI, split("/", $set), 0]);
		    for my $step (@steps) {
		        my ($operation, $usecs, $prefer, $tracking) = @$step;
		        my $napi = pack("LCx3Lx4", $usecs, $prefer, $tracking);
		        die "io_uring_register: $!\n" if syscall($IO_URING_REGISTER, $file, $operation, $napi, 1) < 0;
		    }
		}
		open(my $fdinfo, "<", "/proc/self/fdinfo/$file") or die "fdinfo: $!\n";
		my %info = map { /^(\S+):\s*(.*?)\s*$/ ? ($1, $2) : () } <$fdinfo>;
		answer("is off") if ($info{NAPI} // "") ne "enabled";
		my $prefer = ($info{napi_prefer_busy_poll} // "") eq "true" ? 1 : 0;
		answer("is " . int($info{napi_busy_poll_dt} / 1000) . "/$prefer");
	END
}

# ring_in_python: like ring_in_perl.
ring_in_python() {
	cat <<-'END'
		SYS_IO_URING_REGISTER, IORING_REGISTER_NAPI, IORING_UNREGISTER_NAPI = 427, 27, 28
		IO_URING_NAPI_TRACKING_STATIC = 1
		if wanted == "off":
		    # A ring continues to poll the NAPIs in its list. Static tracking empties the list; twice,
		    # because a request may add a NAPI meanwhile.
		    empty = (IORING_REGISTER_NAPI, 0, 0, IO_URING_NAPI_TRACKING_STATIC)
		    steps = [empty, empty, (IORING_UNREGISTER_NAPI, 0, 0, 0)]
		elif wanted:
		    steps = [(IORING_REGISTER_NAPI, *map(int, wanted.split("/")), 0)]
		else:
		    steps = []
		for operation, usecs, prefer, tracking in steps:
		    napi = ctypes.create_string_buffer(struct.pack("=IB3xI4x", usecs, prefer, tracking), 16)
		    if libc.syscall(SYS_IO_URING_REGISTER, file, operation, napi, 1) < 0:
		        failed("io_uring_register")
		info = dict(line.strip().split(":", 1) for line in open(f"/proc/self/fdinfo/{file}") if ":" in line)
		if info.get("NAPI", "").strip() != "enabled":
		    reply("is off")
		prefer = int(info.get("napi_prefer_busy_poll", "").strip() == "true")
		reply(f"is {int(info['napi_busy_poll_dt']) // 1000}/{prefer}")
	END
}

# ring WHAT PID STARTED FD SET OLD: the busy-poll parameters of an io_uring.
ring() {
	owned ring "$1" "$2" "$3" "$4" 'anon_inode:[io_uring]' "$5" "$6"
}
