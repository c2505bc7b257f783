# started STAT: when a process or thread started, which tells it from a later one with the same number: field 22
# of its stat file. The second field, its name, may have anything in it.
started() {
	[ -e "$1" ] && tr '\n' ' ' <"$1" | sed 's/.*) //' | cut -d ' ' -f 20
}
