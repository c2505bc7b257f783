# socket_in_perl: how a receive from a socket busy-polls: USECS/PREFER[/BUDGET] is set, and USECS/PREFER read. The kernel reports
# no budget.
socket_in_perl() {
	cat <<-'END'
		my ($SOL_SOCKET, $BUSY_POLL, $PREFER, $BUDGET) = (1, 46, 69, 70);
		open(my $socket, "+<&=", $file) or die "socket: $!\n";
		if (defined $set) {
		    my ($usecs, $prefer, $budget) = split("/", $set);
		    my @options = ([$PREFER, $prefer], [$BUSY_POLL, $usecs]);
		    unshift(@options, [$BUDGET, $budget]) if defined $budget;
		    for my $option (@options) {
		        setsockopt($socket, $SOL_SOCKET, $option->[0], pack("i", $option->[1])) or die "setsockopt: $!\n";
		    }
		}
		my @now = map { unpack("i", getsockopt($socket, $SOL_SOCKET, $_) // die "getsockopt: $!\n") } ($BUSY_POLL, $PREFER);
		answer("is " . join("/", @now));
	END
}

# socket_in_python: like socket_in_perl.
socket_in_python() {
	cat <<-'END'
		BUSY_POLL, PREFER, BUDGET = 46, 69, 70
		polled = socket.socket(fileno=file)
		if wanted:
		    usecs, prefer, *budget = map(int, wanted.split("/"))
		    options = [(BUDGET, packets) for packets in budget] + [(PREFER, prefer), (BUSY_POLL, usecs)]
		    for option, value in options:
		        polled.setsockopt(socket.SOL_SOCKET, option, value)
		now = (polled.getsockopt(socket.SOL_SOCKET, option) for option in (BUSY_POLL, PREFER))
		reply("is " + "/".join(map(str, now)))
	END
}

# polled WHAT PID STARTED FD INODE SET OLD: how a receive from a socket busy-polls. The budget is restored with the
# others; it cannot be read, so a later value of another program is not noticed.
polled() {
	set_without=$(printf '%s\n' "$6" | cut -d / -f 1,2)
	old_without=$(printf '%s\n' "$7" | cut -d / -f 1,2)
	owned socket "$1" "$2" "$3" "$4" "socket:[$5]" "$set_without" "$old_without" "$7"
}
