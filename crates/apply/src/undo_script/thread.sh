# cpus PID TID: the CPUs that a thread may run on, in the kernel's list format.
cpus() {
	sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$1/task/$2/status"
}

# thread WHAT PID TID STARTED SET OLD: the CPUs that a thread may run on.
thread() {
	if [ "$(started "/proc/$2/task/$3/stat")" != "$4" ]; then
		printf '%s\n' "$1: gone"
	elif ours "$1" "$(cpus "$2" "$3")" "$5" "$6"; then
		taskset -cp "$6" "$3" >/dev/null
		# taskset takes a number, not a pidfd. If the thread still exists afterwards, its CPUs were changed
		# and no other thread's.
		if [ "$(started "/proc/$2/task/$3/stat")" = "$4" ]; then
			seen "$1" "$(cpus "$2" "$3")" "$6"
		else
			printf '%s\n' "$1: gone"
		fi
	fi
}
