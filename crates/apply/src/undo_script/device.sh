# device_directory DEVICE: the directory of a device, whatever its name is now. DEVICE is its index and, behind a colon, the
# number of its directory: that stays when it is renamed, and is never given again. Without one, the index must do.
device_directory() {
	for directory in /sys/class/net/*; do
		[ "$(cat "$directory/ifindex" 2>/dev/null)" = "${1%%:*}" ] || continue
		case $1 in
		*:"$(stat -Lc %i "$directory")" | "${1%%:*}") printf '%s\n' "$directory" ;;
		*) printf '%s\n' "${directory##*/} has the index ${1%%:*} now, and is another device" >&2 ;;
		esac
	done
}
