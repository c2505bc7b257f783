#!/usr/bin/env bash
# Measures the policies that set something on a veth with seven servers, at four loads on three numbers of connections.
#
#   bench/servers/run.sh OUT [SERVER...]      as root, on a quiet machine: 5 minutes for each server; OUT is a directory
#
# NETPOLICY, REPEATS, SECONDS_EACH, POLICIES, RATES and CONNECTIONS change what is run. Each cell's evidence becomes
# OUT/SERVER-CONNECTIONS.json, which `netpolicy bench report` prints. A cell whose file exists is not run again.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
netpolicy=${NETPOLICY:-$here/../../target/release/netpolicy}
policies=${POLICIES:-none,cpu,power}
repeats=${REPEATS:-6}
span=${SECONDS_EACH:-500ms}
rates=${RATES:-1000 5000 20000}
connections=${CONNECTIONS:-1 16 128}

[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$1; shift
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ $# -gt 0 ] || set -- redis memcached-1 memcached-4 nginx haproxy go node

# The command and the protocol of a server. The bench replaces {address} and {port}.
start() {
    case $1 in
    redis) echo redis 6379 "redis-server --bind {address} --port {port} --protected-mode no --save '' --appendonly no" ;;
    memcached-*) echo memcached 11211 "memcached -u nobody -l {address} -p {port} -c 2048 -t ${1#memcached-}" ;;
    nginx) echo http 8080 "nginx -p $work -e stderr -c $work/nginx.conf" ;;
    haproxy) echo http 8081 "haproxy -f $work/haproxy.cfg" ;;
    go) echo http 8082 "$work/go-server {address}:{port}" ;;
    node) echo http 8083 "node $here/server.js {address} {port}" ;;
    *) echo "run.sh: no server \`$1\`: there are redis, memcached-N, nginx, haproxy, go and node" >&2; return 2 ;;
    esac
}

# The lab's server has this address (crates/linux/src/lab).
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cat >"$work/nginx.conf" <<'CONF'
daemon off;
user root;
worker_processes 1;
pid nginx.pid;
events { worker_connections 2048; }
http {
    access_log off;
    keepalive_requests 100000000;
    server { listen 192.0.2.1:8080; location / { return 200 "0123456789012345678901234567890123456789\n"; } }
}
CONF
cat >"$work/haproxy.cfg" <<'CONF'
global
    nbthread 1
    maxconn 2048
defaults
    mode http
    timeout client 60s
frontend answers
    bind 192.0.2.1:8081
    http-request return status 200 content-type text/plain string 0123456789012345678901234567890123456789
CONF
for server in "$@"; do
    start "$server" >/dev/null
    if [ "$server" = go ]; then go build -o "$work/go-server" "$here/server.go"; fi
done

for server in "$@"; do
    read -r protocol port command < <(start "$server")
    bench() {
        "$netpolicy" --quiet bench policies --start "$command" --port "$port" --protocol "$protocol" \
            --connections "$flows" --seconds "$span" "$@"
    }
    for flows in $connections; do
        file=$out/$server-$flows.json
        [ ! -e "$file" ] || continue
        # The rate that the server sustains here in closed loop without tuning. Rates above 80 % of it are omitted.
        bench --policy none --rate max --repeats 3 --json "$file.max" >/dev/null
        most=$(jq '[.. | .throughput? // empty] | sort | .[length / 2 | floor] | floor' "$file.max")
        loads=$((most * 6 / 10))
        for rate in $rates; do
            if [ $((rate * 10)) -lt $((most * 8)) ]; then loads=$rate,$loads; fi
        done
        echo "$server, $flows connections: $most requests/s in closed loop; $loads"
        bench --policy "$policies" --rate "$loads" --repeats "$repeats" --json "$file.new" >"$out/$server-$flows.txt" || {
            code=$?
            # Exit code 1 means a missed gate, or runs that do not count, which the table shows.
            [ "$code" = 1 ] || exit "$code"
        }
        mv "$file.new" "$file"
    done
done
