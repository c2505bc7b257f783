#!/bin/busybox sh
# shellcheck shell=dash
# The emulated guest's first process: the root is the host's, over 9p and read-only. Mount an overlay in memory over it
# and continue there.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
for module in netfs 9pnet 9pnet_virtio 9p overlay; do
    [ ! -f /modules/$module.ko ] || insmod /modules/$module.ko
done
mkdir -p /host /memory /root
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /host
mount -t tmpfs memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work root /root
cd /root || exit 1
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t devtmpfs devtmpfs dev
mount -t tmpfs run run
mkdir run/guest
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=512000 run run/guest
exec switch_root /root /bin/sh /run/guest/stage
