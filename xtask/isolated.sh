#!/bin/sh
# Runs a test in network and mount namespaces of its own: no other test shares its devices, ports, mounts, named namespaces or
# /run/netpolicy. The kernel kills it when the runner ends.
[ "$(id -u)" = 0 ] || exec "$@"
exec setpriv --pdeathsig KILL -- unshare --mount --net -- sh -ec '
	ip link set lo up
	for directory in /run/netns /run/netpolicy; do
		mkdir -p $directory
		mount -t tmpfs -o mode=755 netpolicy-test $directory
	done
	exec "$@"
' sh "$@"
