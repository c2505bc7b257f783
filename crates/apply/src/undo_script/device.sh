# device_directory IFINDEX: the directory of a device, whatever its name is now.
device_directory() {
	for directory in /sys/class/net/*; do
		if [ "$(cat "$directory/ifindex" 2>/dev/null)" = "$1" ]; then
			echo "$directory"
		fi
	done
}
