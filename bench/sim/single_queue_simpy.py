#!/usr/bin/env python3
"""The single queue of `tools/sim/examples/speed.rs` in SimPy, as the naive alternative.

One queue, one CPU, one application thread, 64 connections in an open loop of 50K requests/s: an interrupt, a poll of up to
64 packets, the application's batch. Every packet is an event, as in a textbook. Costs as in scenarios/lab.toml; moderation, deferral,
scheduler and client noise are left out, which favours SimPy.

    python3 -m venv VENV && VENV/bin/pip install simpy
    VENV/bin/python bench/sim/single_queue_simpy.py
"""

import random
import time

import simpy

SECONDS = 2.0
CONNECTIONS = 64
LOAD = 50_000.0
RTT, ACK_DELAY = 29.4, 7.9
IRQ, POLL, PACKET, ACK, WAKE = 3.38, 0.37, 1.92, 1.54, 0.74
EPOLL, SLEEP, SWITCH_IN, REQUEST = 1.12, 1.5, 1.13, 2.81
BUDGET = 64


def main():
    random.seed(1)
    env = simpy.Environment()
    cpu = simpy.PreemptiveResource(env, capacity=1)
    ring, ready = [], []
    state = {"armed": True, "packets": 0, "answered": 0, "latency": 0.0}
    irq, events = simpy.Store(env), simpy.Store(env)

    def arrive(delay, packet):
        yield env.timeout(delay)
        ring.append(packet)
        if state["armed"]:
            state["armed"] = False
            irq.put(None)

    def work(cost, priority):
        """Takes the CPU for this long, and again after every preemption."""
        while cost > 0:
            with cpu.request(priority=priority) as turn:
                try:
                    yield turn
                    began = env.now
                    yield env.timeout(cost)
                    cost = 0
                except simpy.Interrupt:
                    cost -= env.now - began

    def softirq():
        while True:
            yield irq.get()
            yield from work(IRQ, 0)
            while ring:
                yield from work(POLL, 0)
                for _ in range(min(BUDGET, len(ring))):
                    packet = ring.pop(0)
                    yield from work(ACK if packet is None else PACKET, 0)
                    state["packets"] += 1
                    if packet is not None:
                        if not ready and not events.items:
                            yield from work(WAKE, 0)
                            events.put(None)
                        ready.append(packet)
            state["armed"] = True

    def application():
        while True:
            yield events.get()
            yield from work(SWITCH_IN, 1)
            while ready:
                batch, ready[:] = list(ready), []
                for connection, sent in batch:
                    yield from work(REQUEST / 2 + random.expovariate(2 / REQUEST), 1)
                    state["answered"] += 1
                    state["latency"] += env.now + RTT / 2 - sent
                    env.process(arrive(ACK_DELAY, None))
                yield from work(EPOLL, 1)
            yield from work(SLEEP, 1)
            if ready and not events.items:
                events.put(None)

    def client(connection):
        gap = CONNECTIONS * 1e6 / LOAD
        yield env.timeout(random.uniform(0, gap))
        while True:
            env.process(arrive(RTT / 2, (connection, env.now)))
            yield env.timeout(random.expovariate(1 / gap))

    env.process(softirq())
    env.process(application())
    for connection in range(CONNECTIONS):
        env.process(client(connection))
    began = time.perf_counter()
    env.run(until=SECONDS * 1e6)
    spent = time.perf_counter() - began
    mean = state["latency"] / max(state["answered"], 1)
    print(f"simulated {SECONDS:.1f} s in {spent:.2f} s: {state['answered']} answers, mean {mean:.1f} us, "
          f"{state['packets'] / spent / 1e6:.4f} M packets/s")


if __name__ == "__main__":
    main()
