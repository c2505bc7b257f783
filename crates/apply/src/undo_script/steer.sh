# context_ids NAME FIRST COUNT: the RSS contexts that spread packets evenly over COUNT queues from FIRST.
context_ids() {
	id=1
	while [ "$id" -le 64 ]; do
		if ethtool -x "$1" context "$id" 2>/dev/null | awk -v first="$2" -v count="$3" '
			/^ *[0-9]+:/ { for (i = 2; i <= NF; i++) bad += $i != first + n++ % count }
			END { exit !n || bad }
		'; then
			printf '%s\n' "$id"
		fi
		id=$((id + 1))
	done
}

# one_of IDS: whether there is exactly one id.
one_of() {
	case $1 in
	'' | *[!0-9]*) return 1 ;;
	esac
}

# rss_context WHAT DEVICE FIRST COUNT SET OLD: whether there is such a context, yes or no.
rss_context() {
	nic ethtool "$1" "$2" "$6" || return 0
	ids=$(context_ids "$name" "$3" "$4")
	if ours "$1" "$([ -z "$ids" ] && printf '%s\n' no || printf '%s\n' yes)" "$5" "$6"; then
		if [ "$6" = yes ]; then
			stuck "$1" "a recreated context would have another id"
		elif one_of "$ids"; then
			ethtool -X "$name" context "$ids" delete
			seen "$1" "$([ -z "$(context_ids "$name" "$3" "$4")" ] && printf '%s\n' no || printf '%s\n' yes)" "$6"
		else
			stuck "$1" "which of these contexts is meant is not known: $(printf '%s\n' "$ids" | tr '\n' ' ')"
		fi
	fi
}

# flow_rules NAME: each rule as its location, its flow in the words of ethtool -N, and its target, separated by tabs. A
# flow that whole fields cannot express contains a ?.
flow_rules() {
	ethtool -n "$1" | awk '
		function is(word, value, mask) {
			if (mask ~ /^(0x0+|[0.]+|[0:]+)$/) flow = flow " " word " " value
			else if (tolower(mask) !~ /^(0x[f]+|255\.255\.255\.255|[f:]+)$/) flow = flow " ?"
		}
		function any(mask) { if (tolower(mask) !~ /^0x[f]+$/) flow = flow " ?" }
		function ethertype(hex) {
			sub(/^0[xX]/, "", hex)
			while (length(hex) < 4) hex = "0" hex
			return "0x" tolower(hex)
		}
		function end() { if (place != "") print place "\t" flow "\t" to }
		/^Filter:/ { end(); place = $2; flow = "?"; to = "?"; context = "" }
		/Rule Type: (TCP|UDP) over IPv[46]/ { flow = tolower($3) substr($5, 4) }
		/Flow Type: Raw Ethernet/ { flow = "ether" }
		/Src IP addr:/ { is("src-ip", $4, $6) }
		/Dest IP addr:/ { is("dst-ip", $4, $6) }
		/Src port:/ { is("src-port", $3, $5) }
		/Dest port:/ { is("dst-port", $3, $5) }
		/TOS:/ { any($4) }
		/Traffic Class:/ { any($5) }
		/VLAN|User-defined/ { any($NF) }
		/Src MAC addr:/ { if (tolower($6) !~ /^[f:]+$/) flow = flow " ?" }
		/Dest MAC addr:/ { is("dst", tolower($4), $6) }
		/Ethertype:/ { is("proto", ethertype($2), $4) }
		/RSS Context ID:/ { context = $4 }
		/Action: Direct to queue/ { to = context == "" ? "queue " $5 : "context-id " context }
		/Action: Drop/ { to = "drop" }
		END { end() }
	'
}

# steered NAME VALUE: the value, with the id of a context that is named by its queues.
steered() {
	case $2 in
	context*)
		queues=${2#context }
		first=${queues%-*}
		printf '%s\n' "context-id $(context_ids "$1" "$first" $((${queues#*-} - first + 1)))"
		;;
	*) printf '%s\n' "$2" ;;
	esac
}

# rule_now NAME FLOW: the target of the packets of a flow.
rule_now() {
	to=$(flow_rules "$1" | awk -F '\t' -v flow="$2" '$2 == flow { print $3; exit }')
	printf '%s\n' "${to:-none}"
}

# flow_rule WHAT DEVICE FLOW SET OLD: the target to which the NIC directs the packets of a flow.
flow_rule() {
	nic ethtool "$1" "$2" "$5" || return 0
	old=$(steered "$name" "$5")
	if ours "$1" "$(rule_now "$name" "$3")" "$(steered "$name" "$4")" "$old"; then
		place=$(flow_rules "$name" | awk -F '\t' -v flow="$3" '$2 == flow { print $1; exit }')
		case $old in
		queue*) action="action ${old#queue }" ;;
		drop) action='action -1' ;;
		*) action="context ${old#context-id }" ;;
		esac
		if [ "$old" = none ]; then
			ethtool -N "$name" delete "$place"
		else
			# Unquoted, to be split into arguments: netpolicy wrote the words.
			# shellcheck disable=SC2086
			ethtool -N "$name" flow-type $3 $action loc "$place" || {
				ethtool -N "$name" delete "$place"
				ethtool -N "$name" flow-type $3 $action loc "$place"
			}
		fi >/dev/null
		seen "$1" "$(rule_now "$name" "$3")" "$old"
	fi
}
