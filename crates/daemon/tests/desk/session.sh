# Acts as the process of a session. Its last argument, the name of the service, determines what it does.
end() { printf '{"netpolicy_session_end": {"exit": %d, "why": null, "hint": null, "transactions": ["%s"]}}\n' "$1" "$2"; exit "$1"; }
trap 'echo restored; end 0 after-term' TERM
for last; do :; done
case " $* " in
*" try "*)
    read -r policy
    echo "policy: $policy"
    end 0 on-trial ;;
esac
case $last in
short) echo '{"kind": "window", "data": {"n": 1}}'; echo a note; end 0 kept ;;
fails)
    echo '{"netpolicy_session_end": {"exit": 7, "why": "too few requests", "hint": "generate traffic", "transactions": []}}'
    exit 7 ;;
dies) echo 'error: no such option' >&2; exit 2 ;;
killed) echo progress >&2; kill -9 $$ ;;
flood) while :; do printf '{"data": "%01000d"}\n' 1; done ;;
stubborn) trap '' TERM ;;
esac
echo '{"kind": "window"}'
while :; do sleep 0.05; done
