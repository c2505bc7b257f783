# thread WHAT PID TID STARTED SET OLD: the CPUs that a thread may run on.
thread() {
	if [ "$(started "/proc/$2/task/$3/stat")" != "$4" ]; then
		echo "$1: gone"
	elif ours "$1" "$(taskset -cp "$3" | sed 's/.*: *//')" "$5" "$6"; then
		taskset -cp "$6" "$3" >/dev/null
		seen "$1" "$(taskset -cp "$3" | sed 's/.*: *//')" "$6"
	fi
}
