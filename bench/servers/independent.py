#!/usr/bin/env python3
"""Measures policies with a client that shares no code with netpolicy's: tools/experiments/src/bench/open_loop.c.

    bench/servers/independent.py [NETPOLICY]     as root, on a quiet machine: two minutes

A redis-server in a lab is asked PING in open loop, 20 000 times a second on 128 connections, while the lab's device is
under each policy in turn, in random order. CPU time is what /proc/stat says of all CPUs, client included, over the
window; response times count from when a request was due. Printed: medians, and ratios to the untouched host over the
pairs of a round with 95 % intervals (Student's t on logarithms), as `netpolicy bench policies` computes them.
"""

import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RATE, CONNECTIONS, ROUNDS, WINDOW, WARM_UP = 20_000, 128, 12, 1.0, 0.15
POLICIES = ["none", "cpu", "power"]
REQUEST, ANSWER_BYTES, PORT = "PING " + "x" * 64 + "\r\n", 64 + 7, 6379
# Quantiles of Student's t for 97.5 %, by degrees of freedom.
T = {5: 2.571, 7: 2.365, 9: 2.262, 11: 2.201, 15: 2.131, 19: 2.093, 23: 2.069}


def busy():
    """Seconds that all CPUs were neither idle nor stolen."""
    with open("/proc/stat", encoding="ascii") as stat:
        user, nice, system, _idle, _wait, irq, softirq = map(int, stat.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def monotonic():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def run(client, netns, address, seed):
    begin = monotonic() + 100_000_000
    opens = begin + int(WARM_UP * 1e9)
    closes = opens + int(WINDOW * 1e9)
    words = [address, PORT, 0, CONNECTIONS, RATE, ANSWER_BYTES, seed, begin, opens, closes, REQUEST]
    command = ["nsenter", f"--net={netns}", client, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        spent = []
        for moment in (opens, closes):
            time.sleep(max(0, moment - monotonic()) / 1e9)
            spent.append(busy())
        measured = json.loads(child.communicate()[0])
    return {
        "cpu": (spent[1] - spent[0]) / measured["answers_in_window"] * 1e6,
        "p50": measured["from_due"][0] / 1e3,
        "p99": measured["from_due"][2] / 1e3,
        "late": measured["late"][0] / 1e3,
    }


def ratio(of, to):
    logs = [math.log(a / b) for a, b in zip(of, to)]
    half = T[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(statistics.mean(logs) + shift) for shift in (-half, 0, half))
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def main():
    netpolicy = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "../../target/release/netpolicy")
    with tempfile.TemporaryDirectory() as work:
        client = os.path.join(work, "open_loop")
        source = os.path.join(HERE, "../../tools/experiments/src/bench/open_loop.c")
        subprocess.run(["cc", "-O2", "-o", client, source, "-lm"], check=True)
        lab = subprocess.Popen([netpolicy, "-o", "json", "lab", "--queues", "1", "--threads", "1"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        server = None
        try:
            described = ""
            for line in lab.stdout:
                described += line
                if line == "}\n":
                    break
            described = json.loads(described)["data"]
            inside, outside = described["server"], described["client"]
            path = inside["netns"].replace("pid:", "/proc/") + ("/ns/net" if "pid:" in inside["netns"] else "")
            server = subprocess.Popen(["nsenter", f"--net={path}", "taskset", "-c", "1", "redis-server", "--bind",
                                       inside["address"], "--port", str(PORT), "--protected-mode", "no", "--save", "",
                                       "--appendonly", "no"], stdout=subprocess.DEVNULL, cwd=work)
            time.sleep(1)
            measured = {policy: [] for policy in POLICIES}
            for number in range(ROUNDS):
                for policy in random.sample(POLICIES, len(POLICIES)):
                    command = [netpolicy, "--quiet", "--netns", inside["netns"], "--state-dir",
                               os.path.join(work, "state")]
                    if policy != "none":
                        subprocess.run([*command, "set", "device", inside["device"], policy], check=True)
                    measured[policy].append(run(client, outside["netns"], inside["address"], number + 1))
                    if policy != "none":
                        subprocess.run([*command, "rollback"], check=True)
        finally:
            for child in (server, lab):
                if child:
                    child.terminate()
                    child.wait()
    for policy in POLICIES:
        column = {name: [one[name] for one in measured[policy]] for name in measured[policy][0]}
        untouched = {name: [one[name] for one in measured["none"]] for name in column}
        print(f"{policy}: CPU per request {statistics.median(column['cpu']):.1f} us, "
              f"p50 {statistics.median(column['p50']):.0f} us, p99 {statistics.median(column['p99']):.0f} us, "
              f"sent {statistics.median(column['late']):.0f} us late")
        if policy != "none":
            print("   against none: " + ", ".join(f"{name} {ratio(column[name], untouched[name])}"
                                                   for name in ("cpu", "p50", "p99")))


main()
