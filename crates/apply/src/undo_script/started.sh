# started STAT: when a process or thread started, field 22 of its stat file. A later process with the same number has
# another start time. The second field, the name, may contain anything.
started() {
	[ -e "$1" ] && tr '\n' ' ' <"$1" | sed 's/.*) //' | cut -d ' ' -f 20
}
