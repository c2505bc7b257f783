#!/usr/bin/env python3
"""Records what policies gain on live services, with what `watch` shows of each service before.

    bench/servers/live.py OUT [SERVER...]      as root: a minute for each of eight cells of a server

In each cell a server in a namespace is asked in open loop by tools/experiments/src/bench/open_loop.c, in random order of
cells. `netpolicy watch` measures it for three seconds, then `netpolicy compare --b cpu --b power`. Both documents of a cell
become OUT/SERVER-CONNECTIONS-RATE.json; a cell that is there is not run again. `live.py --table OUT...` prints a line
for each cell and policy: crates/latency/src/measure/expectation/recorded.tsv. NETPOLICY is the program, UNDER a command that
runs each cell.
"""

import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NETPOLICY = os.environ.get("NETPOLICY", os.path.join(HERE, "../../target/release/netpolicy"))
ADDRESS, CLIENT = "192.0.2.1", "192.0.2.2"
CELLS = [(c, r) for c in (1, 16, 128) for r in (1_000, 5_000, 20_000) if (c, r) != (1, 20_000)]
PORTS = {"redis": 6379, "memcached": 11211, "nginx": 8080, "haproxy": 8081, "go": 8082, "node": 8083}
# Minimum number of rounds for a result.
ROUNDS_MIN = 4
HTTP = "GET / HTTP/1.1\r\nHost: server\r\n\r\n"
REQUESTS = {"redis": "PING\r\n", "memcached": "get absent\r\n"}
NGINX = """daemon off; user root; worker_processes 1; pid nginx.pid; events { worker_connections 2048; }
http { access_log off; keepalive_requests 100000000;
server { listen %s:8080; location / { return 200 "0123456789012345678901234567890123456789\\n"; } } }"""
HAPROXY = """global
    nbthread 1
    maxconn 2048
defaults
    mode http
    timeout client 600s
frontend answers
    bind %s:8081
    http-request return status 200 content-type text/plain string 0123456789012345678901234567890123456789
"""


def command(server, work):
    return {
        "redis": f"redis-server --bind {ADDRESS} --port 6379 --protected-mode no --save '' --appendonly no",
        "memcached": f"memcached -u nobody -l {ADDRESS} -p 11211 -c 2048 -t 1",
        "nginx": f"nginx -p {work} -e stderr -c {work}/nginx.conf",
        "haproxy": f"haproxy -f {work}/haproxy.cfg",
        "go": f"{work}/go-server {ADDRESS}:8082",
        "node": f"node {HERE}/server.js {ADDRESS} 8083",
    }[server]


def run(*words, check=True):
    return subprocess.run([str(word) for word in words], check=check, capture_output=True, text=True)


class Hosts:
    """Two namespaces, and a veth between them whose server end has a NAPI."""

    def __init__(self):
        self.server, self.client = f"live-s{os.getpid()}", f"live-c{os.getpid()}"

    def __enter__(self):
        for netns in (self.server, self.client):
            run("ip", "netns", "add", netns)
        run("ip", "link", "add", "eth0", "netns", self.server, "type", "veth", "peer", "eth0", "netns", self.client)
        for netns, address in ((self.server, ADDRESS), (self.client, CLIENT)):
            run("ip", "-n", netns, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", netns, "link", "set", "eth0", "up")
        run("ip", "netns", "exec", self.server, "ethtool", "-K", "eth0", "gro", "on")
        run("ip", "netns", "exec", self.client, "ethtool", "-K", "eth0", "tso", "off")
        return self

    def __exit__(self, *_):
        for netns in (self.server, self.client):
            run("ip", "netns", "del", netns, check=False)


def answer_bytes(hosts, port, request):
    """The length of an answer, once the server listens."""
    ask = (
        "import socket,sys,time\n"
        "end=time.time()+10\n"
        "while True:\n"
        " try: s=socket.create_connection((sys.argv[1],int(sys.argv[2])));break\n"
        " except OSError:\n"
        "  if time.time()>end: raise\n"
        "  time.sleep(.1)\n"
        "s.sendall(sys.argv[3].encode());time.sleep(.3);print(len(s.recv(65536)))\n"
    )
    return int(run("ip", "netns", "exec", hosts.client, "python3", "-c", ask, ADDRESS, port, request).stdout)


def cell(out, work, server, connections, rate):
    port, request = PORTS[server], REQUESTS.get(server, HTTP)
    with Hosts() as hosts:
        inside = ["ip", "netns", "exec"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started = ["taskset", "-c", "1", *shlex.split(command(server, work))]
        with subprocess.Popen([*inside, hosts.server, *started], cwd=work, **quiet) as process:
            client = None
            try:
                length = answer_bytes(hosts, port, request)
                begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + 200_000_000
                ends = begin + 120 * 1_000_000_000
                words = [ADDRESS, port, 0, connections, rate, length, 1, begin, begin, ends, request]
                client = subprocess.Popen(
                    [*inside, hosts.client, f"{work}/open_loop", *map(str, words)], **quiet
                )
                time.sleep(1)
                state = f"{work}/state"
                common = ["--netns", hosts.server, "--state-dir", state, "-o", "json"]
                of = ["--port", str(port)]
                watched = run(NETPOLICY, *common, "watch", *of, "--sample", "400ms", "--seconds", 3)
                compared = run(
                    NETPOLICY, *common, "compare", *of, "--b", "cpu", "--b", "power", "--metric", "cpu,p50",
                    "--seconds", 40,
                )
            finally:
                for child in (client, process):
                    if child is not None:
                        child.send_signal(signal.SIGTERM)
                        try:
                            child.wait(5)
                        except subprocess.TimeoutExpired:
                            child.kill()
    found = {
        "server": server, "connections": connections, "rate": rate, "kernel": os.uname().release,
        "watch": json.loads(watched.stdout)["data"], "compare": json.loads(compared.stdout)["data"],
    }
    with open(f"{out}/{server}-{connections}-{rate}.json", "w", encoding="utf-8") as file:
        json.dump(found, file)


def table(directories):
    """A line for each cell and policy; changes are shares of the value without the policy."""
    print("server\trate\tconnections\tpackets_per_poll\tswitches\tdelivery_share\tspread\tpolicy\tcpu\tp50")
    found = []
    for directory in directories:
        for name in sorted(os.listdir(directory)):
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                found.append(json.load(file))
    for one in sorted(found, key=lambda one: (one["server"], one["connections"], one["rate"])):
        watch, cost = one["watch"], one["watch"]["cost"]
        packets = sum(sum(napi["packets"].values()) for napi in watch["napis"])
        polls = sum(sum(napi["polls"].values()) for napi in watch["napis"])
        service, delivery = cost["service"], cost["delivery"]
        share = delivery / (service + delivery) if service and delivery is not None else None
        response = watch["response"]
        spread = response["p90"]["estimate"] / response["p50"]["estimate"] if response["p90"] else None
        load = [packets / polls if polls else None, cost["switches"], share, spread]
        load = ["-" if value is None else f"{value:.3f}" for value in load]
        for compared in one["compare"]["comparisons"]:
            changes = {change["metric"]: change["change"] for change in compared["changes"]}
            if one["compare"]["rounds"] < ROUNDS_MIN or not changes.get("cpu") or not changes.get("p50"):
                continue
            shares = [f"{changes[metric]['estimate']:.4f}" for metric in ("cpu", "p50")]
            start = [one["server"], f"{watch['rate']:.0f}", str(watch["connections"])]
            print("\t".join([*start, *load, compared["candidate"], *shares]))


def main():
    if len(sys.argv) > 2 and sys.argv[1] == "--cell":
        cell(*sys.argv[2:5], int(sys.argv[5]), int(sys.argv[6]))
        return
    if len(sys.argv) > 2 and sys.argv[1] == "--table":
        table(sys.argv[2:])
        return
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    out = os.path.abspath(sys.argv[1])
    os.makedirs(out, exist_ok=True)
    cells = [(s, *cell) for s in sys.argv[2:] or PORTS for cell in CELLS]
    random.Random(1).shuffle(cells)
    with tempfile.TemporaryDirectory() as work:
        os.chmod(work, 0o755)
        for name, text in (("nginx.conf", NGINX), ("haproxy.cfg", HAPROXY)):
            with open(f"{work}/{name}", "w", encoding="ascii") as file:
                file.write(text % ADDRESS)
        source = os.path.join(HERE, "../../tools/experiments/src/bench/open_loop.c")
        run("cc", "-O2", "-o", f"{work}/open_loop", source, "-lm")
        run("go", "build", "-o", f"{work}/go-server", f"{HERE}/server.go")
        under = shlex.split(os.environ.get("UNDER", ""))
        for server, connections, rate in cells:
            if os.path.exists(f"{out}/{server}-{connections}-{rate}.json"):
                continue
            words = [*under, sys.executable, __file__, "--cell", out, work, server, str(connections), str(rate)]
            ended = subprocess.run(words, check=False, capture_output=True, text=True)
            last = ended.stderr.strip().splitlines()[-1:] if ended.returncode else ["recorded"]
            print(server, connections, rate, *last, flush=True)


if __name__ == "__main__":
    main()
