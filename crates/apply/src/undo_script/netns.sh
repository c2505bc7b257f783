# is_own FILE: whether this file is of the network namespace that the script runs in.
is_own() {
	[ "$(stat -Lc %i /proc/self/ns/net)" = "$(stat -Lc %i "$1" 2>/dev/null)" ]
}

# inside FILE FUNCTION ...: calls the function in the network namespace of this file. In another one than ours, this script
# runs again to do so, with a /sys that shows the devices there.
inside() {
	file=$1
	shift
	if is_own "$file"; then
		"$@"
	else
		nsenter --net="$file" unshare --mount sh "$0" --call "$@" || failed=5
	fi
}

# less_known_files: files of network namespaces that no name and no process leads to: mounts and open files.
less_known_files() {
	sed -n 's,^[0-9]* [0-9]* [0-9:]* net:\[[0-9]*\] \([^ ]*\) .*,\1,p' /proc/self/mountinfo
	find /proc/[0-9]*/fd -maxdepth 1 -lname 'net:\[*\]' 2>/dev/null
}

# netns_file INODE: a file of the network namespace with this inode.
netns_file() {
	for file in /proc/self/ns/net /run/netns/* /proc/[0-9]*/ns/net; do
		[ "$(stat -Lc %i "$file" 2>/dev/null)" = "$1" ] && printf '%s\n' "$file" && return
	done
	for file in $(less_known_files); do
		[ "$(stat -Lc %i "$file" 2>/dev/null)" = "$1" ] && printf '%s\n' "$file" && return
	done
}

# has_device DEVICE: fails if the device is not in the network namespace that the script runs in.
has_device() {
	failed=0
	[ -n "$(device_directory "$1" 2>/dev/null)" ] || failed=1
}

# holds_device FILE DEVICE: whether the device is in the network namespace of this file.
holds_device() {
	if is_own "$1"; then
		(
			has_device "$2"
			exit "$failed"
		)
	else
		nsenter --net="$1" unshare --mount sh "$0" --call has_device "$2" 2>/dev/null
	fi
}

# moved_to DEVICE: a file of the network namespace that the device is in now.
moved_to() {
	looked_into=' '
	for file in /proc/self/ns/net /run/netns/* /proc/[0-9]*/ns/net $(less_known_files); do
		of=$(stat -Lc %i "$file" 2>/dev/null) || continue
		case $looked_into in
		*" $of "*) continue ;;
		esac
		looked_into="$looked_into$of "
		holds_device "$file" "$1" && printf '%s\n' "$file" && return
	done
}

# netns_of INODE DEVICE: a file of the network namespace with this inode, or of the one that the device has been moved to since.
netns_of() {
	netns=$(netns_file "$1")
	case $2 in
	*:*)
		if [ -z "$netns" ] || ! holds_device "$netns" "$2"; then
			moved=$(moved_to "$2")
			netns=${moved:-$netns}
		fi
		;;
	esac
	printf '%s\n' "$netns"
}

# in_netns INODE FUNCTION WHAT DEVICE ...: calls the function in the network namespace where the device is: the one with this
# inode, or another one that the device has been moved to.
in_netns() {
	if [ "$1 $4" != "${located:-}" ]; then
		located="$1 $4"
		device_is_in=$(netns_of "$1" "$4")
	fi
	shift
	if [ -z "$device_is_in" ]; then
		printf '%s\n' "$2: gone"
	else
		inside "$device_is_in" "$@"
	fi
}
