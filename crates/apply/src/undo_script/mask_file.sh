# short_mask: a mask without leading zeros, which the kernel writes according to its number of CPUs.
short_mask() {
	sed 's/^[0,]*//; s/^$/0/'
}

# mask_file WHAT DEVICE FILE SET OLD: a setting that is a file of a device with a mask in it.
mask_file() {
	directory=$(device_directory "$2")
	if [ -z "$directory" ]; then
		printf '%s\n' "$1: gone"
	elif ours "$1" "$(short_mask <"$directory/$3")" "$4" "$5"; then
		printf '%s\n' "$5" >"$directory/$3"
		seen "$1" "$(short_mask <"$directory/$3")" "$5"
	fi
}
