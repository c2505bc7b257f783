# after_current WORD: the value after a word, below the line with the current settings.
after_current() {
	sed -n "/^Current hardware settings:/,\$s/^$1:[[:space:]]*//p"
}

# coalesce_value WORD: a value in the output of ethtool -c, which prints two switches per line.
coalesce_value() {
	case $1 in
	adaptive-rx) sed -n 's/^Adaptive RX: \([a-z/]*\).*/\1/p' ;;
	adaptive-tx) sed -n 's/^Adaptive RX:.*TX: \([a-z/]*\).*/\1/p' ;;
	cqe-mode-rx) sed -n 's/^CQE mode RX: \([a-z/]*\).*/\1/p' ;;
	cqe-mode-tx) sed -n 's/^CQE mode RX:.*TX: \([a-z/]*\).*/\1/p' ;;
	*) sed -n "s/^$1:[[:space:]]*//p" ;;
	esac
}

# offload_word WORD: ethtool -k's name of a feature, if it differs from the kernel's.
offload_word() {
	case $1 in
	rx-gro) printf '%s\n' generic-receive-offload ;;
	rx-lro) printf '%s\n' large-receive-offload ;;
	tx-generic-segmentation) printf '%s\n' generic-segmentation-offload ;;
	rx-ntuple-filter) printf '%s\n' ntuple-filters ;;
	rx-hashing) printf '%s\n' receive-hashing ;;
	*) printf '%s\n' "$1" ;;
	esac
}

# queue_mask N: the mask of one queue, in hexadecimal.
queue_mask() {
	zeros=$(($1 / 4))
	printf '0x%x' $((1 << ($1 % 4)))
	while [ "$zeros" -gt 0 ]; do
		printf 0
		zeros=$((zeros - 1))
	done
}

# requested WORD: the requested state of an offload in the output of `ethtool -k`: `off [requested on]` while the kernel
# cannot switch it.
requested() {
	sed -n "s/^[[:space:]]*$1: [a-z]* \[requested \([a-z]*\)\].*/\1/p;t
		s/^[[:space:]]*$1: \([a-z]*\).*/\1/p"
}

# ethtool_now NAME KIND WORD: the value in force.
ethtool_now() {
	case $2 in
	channels | ring)
		case $3 in
		rx) word=RX ;;
		tx) word=TX ;;
		*) word=Combined ;;
		esac
		case $2 in
		channels) ethtool -l "$1" ;;
		*) ethtool -g "$1" ;;
		esac | after_current "$word"
		;;
	coalesce) ethtool -c "$1" | coalesce_value "$3" ;;
	queue-*) ethtool -Q "$1" queue_mask "$(queue_mask "${2#queue-}")" --show-coalesce | coalesce_value "$3" ;;
	offload) ethtool -k "$1" | requested "$(offload_word "$3")" ;;
	flag) ethtool --show-priv-flags "$1" | sed -n "s/^$3[[:space:]]*: //p" ;;
	key) ethtool -x "$1" | sed -n '/^RSS hash key:/{n;p;}' ;;
	table) ethtool -x "$1" | sed -n '/^RSS hash key:/q;s/^ *[0-9]*:  *//p' | tr -s ' \n' ' ' | sed 's/ $//' ;;
	esac
}

# spread_over TABLE: the number of first queues over which the table spreads evenly, if it does.
spread_over() {
	printf '%s\n' "$1" | awk '
		{ for (i = 1; i <= NF; i++) if ($i + 1 > n) n = $i + 1
		  for (i = 1; i <= NF; i++) bad += $i != (i - 1) % n }
		END { if (n && !bad) print n }
	'
}

# weights_of TABLE: the number of entries for each of the first queues, if the entries of each queue are contiguous and
# in order.
weights_of() {
	printf '%s\n' "$1" | awk '
		{ for (i = 1; i <= NF; i++) { bad += $i < last; last = $i; of[$i]++ } }
		END { if (!bad) for (queue = 0; queue <= last; queue++) printf "%d ", of[queue] }
	'
}

# by_ethtool WHAT DEVICE KIND WORD SET OLD: a setting of a NIC and its driver.
by_ethtool() {
	nic ethtool "$1" "$2" "$6" || return 0
	if ours "$1" "$(ethtool_now "$name" "$3" "$4")" "$5" "$6"; then
		case $3 in
		channels) ethtool -L "$name" "$4" "$6" ;;
		ring) ethtool -G "$name" "$4" "$6" ;;
		coalesce) ethtool -C "$name" "$4" "$6" ;;
		queue-*) ethtool -Q "$name" queue_mask "$(queue_mask "${3#queue-}")" --coalesce "$4" "$6" ;;
		offload) ethtool -K "$name" "$4" "$6" ;;
		flag) ethtool --set-priv-flags "$name" "$4" "$6" ;;
		key) ethtool -X "$name" hkey "$6" ;;
		table)
			queues=$(spread_over "$6")
			weights=$(weights_of "$6")
			if [ -z "$queues$weights" ]; then
				stuck "$1" "ethtool cannot write a table entry by entry, netpolicy can; it was $6"
				return
			fi
			# A table that is the driver's own follows the number of queues; an equal table set by a user does
			# not.
			ethtool -X "$name" default
			if [ "$(ethtool_now "$name" table)" = "$6" ]; then
				:
			elif [ -n "$queues" ]; then
				ethtool -X "$name" equal "$queues"
			else
				# Unquoted, to be split into words. With a weight for each queue, ethtool makes blocks of these
				# lengths.
				# shellcheck disable=SC2086
				ethtool -X "$name" weight $weights
			fi
			;;
		esac >/dev/null
		seen "$1" "$(ethtool_now "$name" "$3" "$4")" "$6"
	fi
}
