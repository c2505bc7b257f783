# task PID FIELD: a field of a task's stat file, by its number in proc_pid_stat(5), from 3.
task() {
	tr '\n' ' ' <"/proc/$1/stat" | sed 's/.*) //' | cut -d ' ' -f $(($2 - 2))
}

# kthreads_named NAME: the kernel threads of a device's NAPIs, in the order of the NAPIs' ids.
kthreads_named() {
	for comm in /proc/[0-9]*/comm; do
		thread=${comm#/proc/}
		thread=${thread%/comm}
		name=$(cat "$comm" 2>/dev/null)
		case $name in
		"napi/$1-"*) [ "$(task "$thread" 4 2>/dev/null)" != 2 ] || printf '%s\n' "${name##*-} $thread" ;;
		esac
	done | sort -n | cut -d ' ' -f 2
}

# kthread_of DEVICE QUEUE: the kernel thread that polls a receive queue now. If netdev netlink is not available, the
# thread is identified by its name, provided that there is one for every queue.
kthread_of() {
	id=$(netdev napi "$(device_index "$1")" "$2" 2>/dev/null)
	if [ -n "$id" ]; then
		netdev get "$id" pid
		return
	fi
	directory=$(device_directory "$1")
	threads=$(kthreads_named "${directory##*/}")
	set -- "$2" "$directory"/queues/rx-*
	if [ "$(printf '%s\n' "$threads" | wc -w)" -eq $(($# - 1)) ]; then
		printf '%s\n' "$threads" | sed -n "$(($1 + 1))p"
	fi
}

# slice PID [NANOSECONDS]: sets the slice of a thread, if given (0: the scheduler's own), and prints it as netpolicy
# writes it for Linux 6.12. Debian's perl is essential; chrt supports slices only from util-linux 2.41 on.
slice() {
	perl - "$@" <<-'END'
		use strict;
		my $machine = (split " ", `uname -m`)[0];
		my ($SET, $GET) = $machine eq "x86_64" ? (314, 315) : $machine =~ /^(aarch64|riscv64|loongarch64)$/ ? (274, 275) : die "$machine\n";
		my ($pid, $runtime) = @ARGV;
		my $read = sub {
		    my $attr = "\0" x 56;
		    syscall($GET, $_[0] + 0, $attr, 56, 0) == 0 or die "sched_getattr: $!\n";
		    unpack("LLQlLQQQLL", $attr);
		};
		my ($default) = (&$read(2))[5];
		if (defined $runtime) {
		    my ($size, $policy, $flags, $nice, $priority) = &$read($pid);
		    my $attr = pack("LLQlLQQQLL", 56, $policy, $flags & 1, $nice, $priority, $runtime, 0, 0, 0, 0);
		    syscall($SET, $pid + 0, $attr, 0) == 0 or die "sched_setattr: $!\n";
		}
		my $now = (&$read($pid))[5];
		if ($now == 0 || $now == $default) {
		    print "default\n";
		} else {
		    print $now, "\n";
		}
	END
}

# kthread_now PID KIND: how a kernel thread is scheduled.
kthread_now() {
	case $2 in
	cpus) sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$1/status" ;;
	slice) slice "$1" ;;
	clamp) uclampset -p "$1" | sed -n 's/.*min: *\([0-9]*\) *max: *\([0-9]*\).*/\1-\2/p' ;;
	class)
		case $(task "$1" 41) in
		0) class=other number=$(task "$1" 19) ;;
		1) class=fifo number=$(task "$1" 40) ;;
		2) class=rr number=$(task "$1" 40) ;;
		3) class=batch number=$(task "$1" 19) ;;
		*) class=unknown number=0 ;;
		esac
		if [ "$number" = 0 ]; then
			printf '%s\n' "$class"
		else
			printf '%s\n' "$class:$number"
		fi
		;;
	esac
}

# kthread_set PID KIND VALUE: changes how a kernel thread is scheduled.
kthread_set() {
	number=0
	case $3 in
	*:*) number=${3#*:} ;;
	esac
	case $2:$3 in
	cpus:*) taskset -cp "$3" "$1" >/dev/null ;;
	slice:default) slice "$1" 0 >/dev/null ;;
	slice:*) slice "$1" "$3" >/dev/null ;;
	clamp:0-1024) uclampset -m -1 -M -1 -p "$1" ;;
	clamp:*) uclampset -m "${3%-*}" -M "${3#*-}" -p "$1" ;;
	class:fifo:*) chrt --fifo -p "$number" "$1" ;;
	class:rr:*) chrt --rr -p "$number" "$1" ;;
	class:batch*) chrt --batch -p 0 "$1" && renice -n "$number" -p "$1" >/dev/null ;;
	class:*) chrt --other -p 0 "$1" && renice -n "$number" -p "$1" >/dev/null ;;
	esac
}

# kthread WHAT DEVICE QUEUE KIND SET OLD: how the kernel thread that polls a receive queue is
# scheduled. A reset may replace the thread, so it is looked up each time.
kthread() {
	if [ -z "$(device_directory "$2")" ]; then
		printf '%s\n' "$1: gone"
		return
	fi
	pid=$(kthread_of "$2" "$3")
	if [ -z "$pid" ]; then
		printf '%s\n' "$1: gone"
	elif ours "$1" "$(kthread_now "$pid" "$4")" "$5" "$6"; then
		kthread_set "$pid" "$4" "$6"
		seen "$1" "$(kthread_now "$pid" "$4")" "$6"
	fi
}
