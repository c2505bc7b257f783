if [ "${1:-}" = --call ]; then
	# The file that led here may have been replaced meanwhile, by the process that has it open.
	if [ "$(stat -Lc %i /proc/self/ns/net)" != "$2" ]; then
		printf '%s\n' "$4: NOT restored: its network namespace cannot be entered" >&2
		exit 5
	fi
	shift 2
	mount -t sysfs sysfs /sys || exit 5
	"$@"
	exit "$failed"
fi
