# size_now NAME WORD: the maximum packet size, if this version of ip supports the word.
size_now() {
	ip -d link show dev "$1" | sed -n "s/.* $2 \([0-9]*\).*/\1/p"
}

# packet_size WHAT DEVICE WORD SET OLD: the maximum size of packets before they are segmented, or to which received ones
# are merged.
packet_size() {
	nic ip "$1" "$2" "$5" || return 0
	now=$(size_now "$name" "$3")
	if [ -z "$now" ]; then
		stuck "$1" "this ip does not know $3 (6.3 and newer know all); the value was $5"
	elif ours "$1" "$now" "$4" "$5"; then
		# If the value is small, the kernel also writes it to the limit for IPv4, which is a separate setting.
		of_ipv4=${3%_max_size}_ipv4_max_size
		ipv4=$(size_now "$name" "$of_ipv4")
		ip link set dev "$name" "$3" "$5" ${ipv4:+"$of_ipv4" "$ipv4"}
		seen "$1" "$(size_now "$name" "$3")" "$5"
	fi
}
