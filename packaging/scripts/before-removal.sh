# Packets are delivered as they were; only what keeps the settings stops.
script=/var/lib/netpolicy/roll-back.sh
if [ -d /run/systemd/system ]; then
	systemctl stop netpolicy.service netpolicy-attach.service || :
fi
# The undo scripts of what is in force, for the operator and for a purge: they need no netpolicy.
if [ -d /var/lib/netpolicy/journal ]; then
	# Nothing is written where the program does not trust the directory.
	if text=$(/usr/sbin/netpolicy rollback --script) && printf '%s\n' "$text" >"$script.new" && mv "$script.new" "$script"; then
		if grep -q '^sh ' "$script"; then
			printf '%s\n' "netpolicy: settings stay in force. To restore them: @PUT_BACK@"
		fi
	else
		rm -f "$script.new"
		printf '%s\n' "netpolicy: settings may stay in force. To restore them, run the undo.sh scripts below" >&2
		printf '%s\n' "netpolicy: /var/lib/netpolicy/journal, the newest first: sh .../undo.sh --by-hand" >&2
	fi
fi
