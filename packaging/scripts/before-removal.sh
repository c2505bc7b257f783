# Stops the services; the settings stay in force.
script=/var/lib/netpolicy/roll-back.sh
if [ -d /run/systemd/system ]; then
	systemctl stop netpolicy.service netpolicy-attach.service || :
fi
# Collects the undo scripts of all settings in force, for the operator and for a purge: the scripts do
# not need netpolicy.
if [ -d /var/lib/netpolicy/journal ]; then
	# Do not write to a directory that the program does not trust.
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
