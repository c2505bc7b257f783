# epoll_in_perl: the busy-poll parameters of an epoll, USECS/BUDGET/PREFER[/FLAGS]; the flags only if there are any.
epoll_in_perl() {
	cat <<-'END'
		my ($EPIOCSPARAMS, $EPIOCGPARAMS) = (0x40088A01, 0x80088A02);
		open(my $epoll, "+<&=", $file) or die "epoll: $!\n";
		if (defined $set) {
		    my $params = pack("LSCC", (split("/", $set), 0)[0 .. 3]);
		    ioctl($epoll, $EPIOCSPARAMS, $params) or die "EPIOCSPARAMS: $!\n";
		}
		ioctl($epoll, $EPIOCGPARAMS, my $params = "\0" x 8) or die "EPIOCGPARAMS: $!\n";
		my @params = unpack("LSCC", $params);
		pop @params unless $params[3];
		answer("is " . join("/", @params));
	END
}

# epoll_in_python: like epoll_in_perl.
epoll_in_python() {
	cat <<-'END'
		EPIOCSPARAMS, EPIOCGPARAMS = 0x40088A01, 0x80088A02
		if wanted:
		    params = [*map(int, wanted.split("/")), 0][:4]
		    fcntl.ioctl(file, EPIOCSPARAMS, struct.pack("=IHBB", *params))
		*params, flags = struct.unpack("=IHBB", fcntl.ioctl(file, EPIOCGPARAMS, bytes(8)))
		reply("is " + "/".join(map(str, params + [flags] * bool(flags))))
	END
}

# epoll WHAT PID STARTED FD SET OLD: the busy-poll parameters of an epoll.
epoll() {
	owned epoll "$1" "$2" "$3" "$4" 'anon_inode:[eventpoll]' "$5" "$6"
}
