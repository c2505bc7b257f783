# Should netpolicy not be able to read the journal beside this script, this tells it that nothing is left to undo.
if [ "$failed" -eq 0 ] && [ -w "$(dirname "$0")" ]; then
	true >"$(dirname "$0")/undone"
fi
exit "$failed"
