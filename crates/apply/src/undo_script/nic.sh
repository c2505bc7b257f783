# nic TOOL WHAT DEVICE OLD: finds the directory and the name of a device that TOOL writes to. Reports it if there is
# none.
nic() {
	directory=$(device_directory "$3")
	name=${directory##*/}
	if [ -z "$directory" ]; then
		printf '%s\n' "$2: gone"
		return 1
	elif ! command -v "$1" >/dev/null; then
		stuck "$2" "$1 is not installed; the value was $4"
		return 1
	fi
}
