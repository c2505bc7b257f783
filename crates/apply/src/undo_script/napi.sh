# netdev OPERATION JSON: one request of the netdev family. ynl is in the kernel's tools/net/ynl; YNL may name it.
netdev() {
	"${YNL:-ynl}" --family netdev --output-json --do "$1" --json "$2"
}

# field NAME: the value of a field of one JSON object of numbers and words.
field() {
	sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p"
}

# napi WHAT DEVICE QUEUE ATTRIBUTE SET OLD: a setting of the NAPI that polls a receive queue. Its id moves when
# the device is reset, so it is asked for now.
napi() {
	if [ -z "$(device_directory "$2")" ]; then
		echo "$1: gone"
		return
	fi
	id=$(netdev queue-get "{\"ifindex\": ${2%%:*}, \"id\": $3, \"type\": \"rx\"}" | field napi-id)
	if [ -z "$id" ]; then
		stuck "$1" "no NAPI found: the device is down, or there is no ynl"
	elif ours "$1" "$(netdev napi-get "{\"id\": $id}" | field "$4")" "$5" "$6"; then
		case $6 in
		*[!0-9]*) netdev napi-set "{\"id\": $id, \"$4\": \"$6\"}" >/dev/null ;;
		*) netdev napi-set "{\"id\": $id, \"$4\": $6}" >/dev/null ;;
		esac
		seen "$1" "$(netdev napi-get "{\"id\": $id}" | field "$4")" "$6"
	fi
}
