#!/usr/bin/env python3
"""A daemon whose policy matches processes with very many epolls: how long it leaves status unanswered, and its memory.

usage, as root: bench/hostile/hostile.py PROGRAM PROCESSES EPOLLS SOCKETS [SECONDS]

PROGRAM is a netpolicy. Each of PROCESSES, of uid 65534, has EPOLLS epolls; each epoll watches all of its SOCKETS UDP sockets.
It runs in mount and network namespaces of its own, and ends what it has started however it ends.
"""

import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time

PROCESS = """
import select, socket, sys
server = socket.create_server(('', int(sys.argv[1])))
sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(int(sys.argv[3]))]
for one in sockets: one.bind(('127.0.0.1', 0))
epolls = [select.epoll() for _ in range(int(sys.argv[2]))]
for epoll in epolls:
    for one in sockets + [server]: epoll.register(one)
print('ready', flush=True)
client = server.accept()[0]
epolls[0].register(client)
client.recv(9)
print('received', flush=True)
sys.stdin.read()
"""
CLIENT = """
import socket, sys
clients = [socket.create_connection(('192.0.2.1', 7000 + at)) for at in range(int(sys.argv[1]))]
for client in clients: client.sendall(b'x')
sys.stdin.read()
"""
POLICY = '[service.theirs]\nmatch = { uid = 65534 }\npolicy = "latency"\ndelivery = "suspend20"\n'
# The variable that is set once this program runs in separate namespaces.
INSIDE = "HOSTILE_INSIDE"
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def shell(command):
    subprocess.run(command, shell=True, check=True)


def peak(pid):
    """The peaks of a process and its children in KiB, and how much they have now."""
    of, now = {}, 0
    for other in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = open(f"/proc/{other}/status").read()
            parent = int(re.search(r"PPid:\t(\d+)", status).group(1))
            if pid in (int(other), parent):
                kind = "daemon" if int(other) == pid else "worker"
                of[kind] = max(of.get(kind, 0), int(re.search(r"VmHWM:\s+(\d+)", status).group(1)))
                now += int(re.search(r"VmRSS:\s+(\d+)", status).group(1))
        except (OSError, AttributeError):
            pass
    return of, now


def main():
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__)
    if os.environ.pop(INSIDE, None) is None:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--net", sys.executable, os.path.abspath(__file__), *sys.argv[1:]])
    started = []
    try:
        measure(started)
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def measure(started):
    def start(*words, **options):
        started.append(subprocess.Popen(*words, **options))
        return started[-1]

    program, processes, epolls, sockets = os.path.abspath(sys.argv[1]), *map(int, sys.argv[2:5])
    seconds = float(sys.argv[5]) if len(sys.argv) > 5 else 30
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    other = start(["unshare", "--net", "sleep", str(seconds + 60)])
    time.sleep(0.5)
    shell("ip link set lo up; mount -t tmpfs none /run")
    shell(f"ip link add v0 type veth peer name v1; ip link set v1 netns {other.pid}; ethtool -K v0 gro on")
    shell("ip addr add 192.0.2.1/24 dev v0; ip link set v0 up")
    shell(f"nsenter -t {other.pid} -n sh -c 'ip addr add 192.0.2.2/24 dev v1; ip link set v1 up'")
    as_nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--", sys.executable, "-c", PROCESS]
    words = [[str(7000 + at), str(epolls), str(sockets)] for at in range(processes)]
    theirs = [start(as_nobody + of, cwd="/", **PIPES) for of in words]
    for process in theirs:
        assert process.stdout.readline() == b"ready\n"
    client = ["nsenter", "-t", str(other.pid), "-n", sys.executable, "-c", CLIENT, str(processes)]
    start(client, stdin=subprocess.PIPE)
    for process in theirs:
        assert process.stdout.readline() == b"received\n"
    with tempfile.TemporaryDirectory() as directory:
        os.mkdir(f"{directory}/policy.d")
        open(f"{directory}/policy.d/10-theirs.toml", "w").write(POLICY)
        base = [program, "--state-dir", f"{directory}/state", "--policy-dir", f"{directory}/policy.d"]
        log = open(f"{directory}/log", "w")
        daemon = start(base + ["daemon"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        path, begun = f"{directory}/state/io.netpolicy", time.monotonic()
        while not os.path.exists(path):
            if daemon.poll() is not None:
                sys.exit(f"the daemon ended:\n{open(log.name).read()}")
            time.sleep(0.01)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        took, of, together = [], {}, 0
        while time.monotonic() - begun < seconds:
            asked, answer = time.monotonic(), b""
            connection.sendall(b'{"method": "io.netpolicy.Status"}\0')
            while not answer.endswith(b"\0"):
                answer += connection.recv(1 << 20)
            took.append(time.monotonic() - asked)
            if len(took) % 10 == 0:
                found, now = peak(daemon.pid)
                of = {kind: max(kib, of.get(kind, 0)) for kind, kib in found.items()}
                together = max(together, now)
            time.sleep(0.012)
        print(f"status: {len(took)} answers, the longest after {max(took) * 1000:.0f} ms")
        print("memory, MiB:", {kind: round(kib / 1024, 1) for kind, kib in of.items()}, "together", together >> 10)
        begun = time.monotonic()
        subprocess.run(base + ["show"], stdout=subprocess.DEVNULL, check=True)
        print(f"show: {time.monotonic() - begun:.2f} s")
        daemon.terminate()
        daemon.wait()
        print("lines in the log:", sum(1 for _ in open(f"{directory}/log")))
        subprocess.run(base + ["rollback"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


main()
