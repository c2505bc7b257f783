# is_own INODE: whether the script runs in the network namespace with this inode.
is_own() {
	[ "$(stat -Lc %i /proc/self/ns/net)" = "$1" ]
}

# enter FILE COMMAND ...: runs the command in the network namespace of this file. A descriptor of another process may
# have become a pipe, whose opening could block, so it is opened with O_NONBLOCK (2048).
enter() {
	if command -v perl >/dev/null; then
		perl -e '$^F = 99; sysopen(my $file, shift, 2048) or die "$!\n"; exec "nsenter", "--net=/proc/self/fd/" . fileno($file), @ARGV' -- "$@"
	else
		file=$1
		shift
		nsenter --net="$file" "$@"
	fi
}

# inside INODE FILE FUNCTION ...: calls the function in the network namespace with this inode, to which the file leads.
# For another namespace, this script runs itself there, with a /sys that shows its devices, and checks the inode.
inside() {
	if is_own "$1"; then
		shift 2
		"$@"
	else
		netns=$1
		file=$2
		shift 2
		enter "$file" unshare --mount sh "$0" --call "$netns" "$@" || failed=5
	fi
}

# less_known_files: files of network namespaces that have neither a name nor a process: mounts and open files.
less_known_files() {
	sed -n 's,^[0-9]* [0-9]* [0-9:]* net:\[[0-9]*\] \([^ ]*\) .*,\1,p' /proc/self/mountinfo
	find /proc/[0-9]*/fd -maxdepth 1 -lname 'net:\[*\]' 2>/dev/null
}

# netns_file INODE: this inode, and a file of the network namespace that has it.
netns_file() {
	for file in /proc/self/ns/net /run/netns/* /proc/[0-9]*/ns/net; do
		[ "$(stat -Lc %i "$file" 2>/dev/null)" = "$1" ] && printf '%s\n' "$1 $file" && return
	done
	for file in $(less_known_files); do
		[ "$(stat -Lc %i "$file" 2>/dev/null)" = "$1" ] && printf '%s\n' "$1 $file" && return
	done
}

# has_device DEVICE: fails if the device is not in the network namespace that the script runs in.
has_device() {
	failed=0
	[ -n "$(device_directory "$1" 2>/dev/null)" ] || failed=1
}

# holds_device INODE FILE DEVICE: whether the device is in this network namespace.
holds_device() {
	if is_own "$1"; then
		(
			has_device "$3"
			exit "$failed"
		)
	else
		enter "$2" unshare --mount sh "$0" --call "$1" has_device "$3" 2>/dev/null
	fi
}

# moved_to DEVICE: the present network namespace of the device, in the form of netns_file.
moved_to() {
	looked_into=' '
	for file in /proc/self/ns/net /run/netns/* /proc/[0-9]*/ns/net $(less_known_files); do
		of=$(stat -Lc %i "$file" 2>/dev/null) || continue
		case $looked_into in
		*" $of "*) continue ;;
		esac
		looked_into="$looked_into$of "
		holds_device "$of" "$file" "$1" && printf '%s\n' "$of $file" && return
	done
}

# netns_of INODE DEVICE: the network namespace with this inode, or the one that the device has been moved to since.
netns_of() {
	netns=$(netns_file "$1")
	case $2 in
	*:*)
		if [ -z "$netns" ] || ! holds_device "${netns%% *}" "${netns#* }" "$2"; then
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
		inside "${device_is_in%% *}" "${device_is_in#* }" "$@"
	fi
}
