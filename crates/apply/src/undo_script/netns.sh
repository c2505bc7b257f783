# in_netns INODE FUNCTION WHAT ...: calls the function in the network namespace with this inode. In another one
# than ours, this script runs again to do so, with a /sys that shows the devices there.
in_netns() {
	inode=$1
	shift
	if [ "$(stat -Lc %i /proc/self/ns/net)" = "$inode" ]; then
		"$@"
		return
	fi
	for netns in /run/netns/* /proc/[0-9]*/ns/net; do
		if [ "$(stat -Lc %i "$netns" 2>/dev/null)" = "$inode" ]; then
			nsenter --net="$netns" unshare --mount sh "$0" --call "$@" || failed=5
			return
		fi
	done
	# No name and no process leads to it: a mount or an open file may.
	for netns in $(sed -n "s,^[0-9]* [0-9]* [0-9:]* net:\[$inode\] \([^ ]*\) .*,\1,p" /proc/self/mountinfo) \
		$(find /proc/[0-9]*/fd -maxdepth 1 -lname "net:\[$inode\]" 2>/dev/null); do
		if [ "$(stat -Lc %i "$netns" 2>/dev/null)" = "$inode" ]; then
			nsenter --net="$netns" unshare --mount sh "$0" --call "$@" || failed=5
			return
		fi
	done
	printf '%s\n' "$2: gone"
}
