# Settings stay in force. A running daemon is replaced by the new version; a stopped one is not
# started. No package contains the journal's directory, because dpkg and rpm would replace a symbolic
# link to another disk.
[ -d /var/lib/netpolicy ] || mkdir -m 0700 /var/lib/netpolicy
# The group whose members may call the daemon.
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers netpolicy.conf || printf '%s\n' "netpolicy: group netpolicy was not made: --api-group needs another one" >&2
fi
# The program can undo settings again, so the script that an earlier removal left is obsolete.
rm -f /var/lib/netpolicy/roll-back.sh
# A copy that `make install` installed below another prefix precedes this one in PATH and in systemd's
# search order.
for other in /usr/local/sbin/netpolicy /usr/local/lib/systemd/system/netpolicy.service /etc/systemd/system/netpolicy.service; do
	if [ -e "$other" ]; then
		printf '%s\n' "netpolicy: $other comes before this package's: remove it, then systemctl daemon-reload" >&2
	fi
done
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
	for unit in netpolicy-attach.service netpolicy.service; do
		if ! systemctl try-restart "$unit"; then
			printf '%s\n' "netpolicy: $unit did not start again. Packets are delivered as before; see: journalctl -u $unit" >&2
		fi
	done
fi
