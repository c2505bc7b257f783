# qdisc_kinds NAME: the kinds of a device's qdiscs: default or the root's, and those of its queues in order.
qdisc_kinds() {
	tc qdisc show dev "$1" | awk '
		$4 == "root" { print "0 " ($3 == "0:" ? "default" : $2); if ($3 == "0:" && $2 != "mq") print "1 " $2 }
		$4 == "parent" && $5 !~ /^ffff:/ {
			minor = $5
			sub(/.*:/, "", minor)
			while (length(minor) < 4) minor = "0" minor
			print "1" minor " " $2
		}
	' | sort | sed 's/^[^ ]* //' | tr '\n' ' ' | sed 's/ $//'
}

# qdiscs WHAT DEVICE SET OLD COMMAND...: the qdiscs of a device; each COMMAND is one of tc qdisc, without the device and
# with @ for the handle of mq.
qdiscs() {
	what=$1
	nic tc "$1" "$2" "$4" || return 0
	set_to=$3
	old=$4
	shift 4
	if ours "$what" "$(qdisc_kinds "$name")" "$set_to" "$old"; then
		for command; do
			mq=$(tc qdisc show dev "$name" | sed -n 's/^qdisc mq \([0-9a-f]*\): root.*/\1/p')
			rest=$(printf '%s\n' "${command#* }" | sed "s/@/$mq/")
			# Unquoted, to be split into arguments: netpolicy wrote the words. Qdiscs that the kernel created
			# by default cannot be deleted.
			# shellcheck disable=SC2086
			tc qdisc "${command%% *}" dev "$name" $rest || [ "$command" = 'del root' ]
		done
		seen "$what" "$(qdisc_kinds "$name")" "$old"
	fi
}
