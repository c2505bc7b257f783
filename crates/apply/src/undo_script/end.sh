# If netpolicy cannot read the journal next to this script, this mark tells it that nothing is left to undo.
if [ "$failed" -eq 0 ] && [ -w "$(dirname "$0")" ]; then
	true >"$(dirname "$0")/undone"
fi
exit "$failed"
