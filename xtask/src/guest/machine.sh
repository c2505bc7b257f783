#!/bin/sh
# Starts QEMU ("$@" has the rest of its arguments) with two virtio NICs of two queues each, connected
# to each other, and two igb NICs, connected to each other. The taps and bridges that connect them are
# in a network namespace of the guest's own: no other process sees them, and they disappear with the
# guest. With E1000E in the environment, an e1000e NIC is on the bridge of the virtio NICs.
set -e
many=yes
for side in 0 1; do
    ip tuntap add name g$side mode tap multi_queue 2>/dev/null || many=no
done
if [ $many = yes ]; then
    ip link add joined type bridge mcast_snooping 0 2>/dev/null || many=no
fi
if [ $many = yes ]; then
    echo 1 > /proc/sys/net/ipv6/conf/joined/disable_ipv6 2>/dev/null || :
    ip link set joined up
fi
for side in 0 1; do
    if [ $many = yes ]; then
        ip link set g$side master joined up
        backend="tap,id=v$side,ifname=g$side,queues=2,vhost=off,script=no,downscript=no"
        # Without rss=on,hash=on, IP packets reach no queue, although ARP does (seen on QEMU 10.0).
        queues=mq=on,vectors=6
    else
        # The NICs are connected without taps or a bridge on this machine, and have one queue each.
        backend="hubport,id=v$side,hubid=1"
        queues=mq=off
    fi
    set -- "$@" -netdev "$backend" \
        -device "virtio-net-pci,netdev=v$side,mac=52:54:00:00:00:1$side,romfile=,$queues" \
        -netdev "hubport,id=i$side,hubid=2" \
        -device "pcie-root-port,id=p$side,chassis=$((side + 1)),slot=$((side + 1))" \
        -device "igb,bus=p$side,netdev=i$side,mac=52:54:00:00:00:2$side,romfile="
done
if [ -n "$E1000E" ]; then
    ip tuntap add name g2 mode tap
    ip link set g2 master joined up
    set -- "$@" -netdev tap,id=e0,ifname=g2,vhost=off,script=no,downscript=no \
        -device pcie-root-port,id=p2,chassis=3,slot=3 \
        -device e1000e,bus=p2,netdev=e0,mac=52:54:00:00:00:30,romfile=
fi
exec "$@"
