# device_directory DEVICE: the directory of a device, whatever its name is now. DEVICE is its index and, after a colon,
# the inode of its directory, which stays when the device is renamed or moved, and is never reused. Without an inode,
# the index identifies the device.
device_directory() {
	for directory in /sys/class/net/*; do
		index=$(cat "$directory/ifindex" 2>/dev/null)
		case $1 in
		*:"$(stat -Lc %i "$directory" 2>/dev/null)" | "$index") printf '%s\n' "$directory" ;;
		"$index":*) printf '%s\n' "${directory##*/} has the index $index now, and is another device" >&2 ;;
		esac
	done
}

# device_index DEVICE: the present index of a device.
device_index() {
	cat "$(device_directory "$1" 2>/dev/null)/ifindex"
}
