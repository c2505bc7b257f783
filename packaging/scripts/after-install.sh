# What is in force stays so; a daemon that runs is replaced, one that does not is not started.
# The journal's directory is in no package: with it, both kinds would remove a link to another disk.
[ -d /var/lib/netpolicy ] || mkdir -m 0700 /var/lib/netpolicy
# The group that may ask the daemon.
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers netpolicy.conf || printf '%s\n' "netpolicy: group netpolicy was not made: --api-group needs another one" >&2
fi
# Undoing what is in force is the program's again.
rm -f /var/lib/netpolicy/roll-back.sh
# An earlier `make install` below another prefix comes first in PATH and in systemd's order.
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
