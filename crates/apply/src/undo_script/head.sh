#
# A setting is restored only if it still has the value that this transaction set: a later value of another program
# is left alone. Running the script twice does no harm. If netpolicy is installed, the script calls it first, except
# with --by-hand. It exits with 0 if all settings were restored or left alone, else with 5.
#
# Functions are called by name, and the names of programs may look like code:
# shellcheck disable=SC2016,SC2317,SC2329
