# device_file WHAT DEVICE FILE SET OLD: a setting that is a file of a device.
device_file() {
	directory=$(device_directory "$2")
	if [ -z "$directory" ]; then
		printf '%s\n' "$1: gone"
	else
		file "$1" "$directory/$3" "$4" "$5"
	fi
}
