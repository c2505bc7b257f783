# started STAT: when a process or thread started, field 22 of its stat file. A later one with the same number has another
# start time. The second field, its name, may have anything in it.
started() {
	[ -e "$1" ] && tr '\n' ' ' <"$1" | sed 's/.*) //' | cut -d ' ' -f 20
}
