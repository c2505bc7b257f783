
# All settings were in the running kernel, and were lost with it.
running=$(cat /proc/sys/kernel/random/boot_id) || {
	printf '%s\n' "$transaction: NOT undone: whether the host has been booted since cannot be read: mount /proc" >&2
	exit 5
}
if [ "$running" != "$boot" ]; then
	printf '%s\n' "The host has been booted since $transaction: there is nothing to undo."
	exit 0
fi

if [ "${1:-}" != --by-hand ] && [ "${1:-}" != --call ] && command -v netpolicy >/dev/null; then
	netpolicy --state-dir "$(dirname "$0")/../.." rollback "$transaction" && exit 0
	printf '%s\n' "netpolicy could not roll $transaction back, continuing by shell." >&2
fi

failed=0

# stuck WHAT WHY: reports a setting that cannot be restored.
stuck() {
	printf '%s\n' "$1: NOT restored: $2" >&2
	failed=5
}

# ours WHAT NOW SET OLD: whether the setting still has the value that netpolicy set.
ours() {
	case $2 in
	"$4") printf '%s\n' "$1: is $4 already" ;;
	"$3") return 0 ;;
	*) printf '%s\n' "$1: left alone: is $2, we had set $3, before that it was $4" ;;
	esac
	return 1
}

# seen WHAT NOW OLD: whether the setting has its old value again.
seen() {
	if [ "$2" = "$3" ]; then
		printf '%s\n' "$1: restored to $3"
	else
		stuck "$1" "should be $3, is $2"
	fi
}
