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
	echo "$2: gone"
}
