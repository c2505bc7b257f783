#
# A setting is restored only if it still has the value that this transaction gave it: what another program has set
# since is left alone. Running it twice does no harm. It asks netpolicy first, if that is installed; with
# --by-hand it does not. It ends with 0 if all is back or left alone, and with 5 if something is not.
#
# Functions are called by name, and the names of programs may look like code:
# shellcheck disable=SC2016,SC2317,SC2329
