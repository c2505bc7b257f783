# file WHAT PATH SET OLD: a setting that is a file of /proc or /sys.
file() {
	if [ ! -e "$2" ]; then
		printf '%s\n' "$1: gone"
	elif ours "$1" "$(cat "$2")" "$3" "$4"; then
		printf '%s\n' "$4" >"$2"
		seen "$1" "$(cat "$2")" "$4"
	fi
}
