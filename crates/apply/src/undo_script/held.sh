# held KIND PID STARTED FD LINK [VALUE]: duplicates a descriptor of another process, if the process has this start time
# and the descriptor is such a file; sets the parameters of KIND if a value is given; prints the value in force. Exits
# with 3 if the process or the file is gone, and with 4 if the process blocks it.
held() {
	kind=$1
	shift
	if command -v perl >/dev/null; then
		perl -e "$(held_in_perl && "${kind}_in_perl")" -- "$@"
	else
		python3 -c "$(held_in_python && "${kind}_in_python")" "$@"
	fi
}

# held_in_perl: Debian's perl is essential. From Linux 5.1 on, system calls have the same numbers everywhere.
#
# The other process may hold a lock of the file for as long as it likes, and a process that waits for the lock cannot be
# killed. So a child waits, and is abandoned after 2 s. The pidfd is opened before the start time is read: if the start
# time is right, the pidfd cannot refer to another process.
held_in_perl() {
	cat <<-'END'
		use strict;
		my ($PIDFD_OPEN, $PIDFD_GETFD, $ESRCH, $EBADF) = (434, 438, 3, 9);
		my ($pid, $started, $fd, $link, $set) = @ARGV;
		pipe(my $answers, my $answer) or die "pipe: $!\n";
		my $child = fork() // die "fork: $!\n";
		if ($child) {
		    close($answer);
		    my ($said, $until) = ("", time() + 3);
		    until ($said =~ /\n\z/) {
		        vec(my $ready = "", fileno($answers), 1) = 1;
		        my $left = $until - time();
		        if ($left <= 0 || !select($ready, undef, undef, $left)) {
		            kill("KILL", $child);
		            $said = "silent\n";
		        } elsif (!sysread($answers, $said, 4096, length($said))) {
		            $said .= "\n";
		        }
		    }
		    # The child exits soon, unless closing the file waits for the process.
		    for (1 .. 10) { last if waitpid($child, 1); select(undef, undef, undef, 0.01) }
		    my ($word, $rest) = $said =~ /^(\S*) ?(.*)/;
		    print("$rest\n"), exit(0) if $word eq "is";
		    print(STDERR "$rest\n") if $word eq "failed";
		    exit({ gone => 3, silent => 4 }->{$word} // 1);
		}
		open($_, "+<", "/dev/null") for *STDIN, *STDOUT, *STDERR;
		sub answer { syswrite($answer, "$_[0]\n"); exit(0) }
		$SIG{__DIE__} = sub { answer("failed $_[0]") };
		my $process = syscall($PIDFD_OPEN, $pid + 0, 0);
		answer($! == $ESRCH ? "gone" : "failed pidfd_open: $!") if $process < 0;
		open(my $stat, "<", "/proc/$pid/stat") or answer("gone");
		my $fields = do { local $/; <$stat> } // "";
		$fields =~ s/.*\) //s;
		answer("gone") if ((split(" ", $fields))[19] // "") ne $started;
		my $file = syscall($PIDFD_GETFD, $process, $fd + 0, 0);
		answer($! == $EBADF || $! == $ESRCH ? "gone" : "failed pidfd_getfd: $!") if $file < 0;
		answer("gone") if readlink("/proc/self/fd/$file") ne $link;
	END
}

# held_in_python: like held_in_perl.
held_in_python() {
	cat <<-'END'
		import ctypes, fcntl, os, select, signal, socket, struct, sys, time
		SYS_PIDFD_GETFD = 438
		pid, started, fd, link = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
		wanted = sys.argv[5] if len(sys.argv) > 5 else None
		answers, answer = os.pipe()
		child = os.fork()
		if child:
		    os.close(answer)
		    said, until = b"", time.monotonic() + 2
		    while not said.endswith(b"\n"):
		        if not select.select([answers], [], [], max(0, until - time.monotonic()))[0]:
		            os.kill(child, signal.SIGKILL)
		            said = b"silent\n"
		        else:
		            said += os.read(answers, 4096) or b"\n"
		    for _ in range(10):
		        if os.waitpid(child, os.WNOHANG)[0]:
		            break
		        time.sleep(0.01)
		    word, _, rest = said.decode().rstrip("\n").partition(" ")
		    if word == "is":
		        print(rest)
		        sys.exit(0)
		    if word == "failed":
		        print(rest, file=sys.stderr)
		    sys.exit({"gone": 3, "silent": 4}.get(word, 1))
		for number in range(3):
		    os.dup2(os.open(os.devnull, os.O_RDWR), number)
		def reply(text):
		    os.write(answer, f"{text}\n".encode())
		    os._exit(0)
		sys.excepthook = lambda kind, error, trace: reply(f"failed {error}")
		libc = ctypes.CDLL(None, use_errno=True)
		def failed(call):
		    reply(f"failed {call}: {os.strerror(ctypes.get_errno())}")
		try:
		    process = os.pidfd_open(pid)
		    stat = open(f"/proc/{pid}/stat", "rb").read()
		except (ProcessLookupError, FileNotFoundError):
		    reply("gone")
		if stat[stat.rindex(b")"):].split()[20].decode() != started:
		    reply("gone")
		file = libc.syscall(SYS_PIDFD_GETFD, process, fd, 0)
		if file < 0:
		    reply("gone") if ctypes.get_errno() in (3, 9) else failed("pidfd_getfd")
		if os.readlink(f"/proc/self/fd/{file}") != link:
		    reply("gone")
	END
}

# owned KIND WHAT PID STARTED FD LINK SET OLD [VALUE]: the parameters of KIND of a file of another process. VALUE is
# what must be written to get OLD back, if it differs from OLD.
owned() {
	case " ${silent:-} " in
	*" $3 "*) stuck "$2" "its process does not answer" && return ;;
	esac
	answered=3
	if [ -e "/proc/$3" ]; then
		now=$(held "$1" "$3" "$4" "$5" "$6")
		answered=$?
	fi
	if [ "$answered" -eq 3 ]; then
		printf '%s\n' "$2: gone"
	elif [ "$answered" -eq 4 ]; then
		silent="${silent:-} $3"
		stuck "$2" "its process does not answer: it holds a lock in a system call. Try again when it has ended"
	elif [ "$answered" -ne 0 ]; then
		stuck "$2" "cannot be read"
	elif ours "$2" "$now" "$7" "$8"; then
		seen "$2" "$(held "$1" "$3" "$4" "$5" "$6" "${9:-$8}")" "$8"
	fi
}
