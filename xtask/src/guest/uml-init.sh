#!/bin/sh
# User-Mode Linux: the root is the host's, read-only. Lay memory over it and go on there.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
run=$(sed 's/.*guest_run=\([^ ]*\).*/\1/' /proc/cmdline)
mount -t tmpfs memory /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work root /mnt/root
cd /mnt/root || exit 1
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t devtmpfs devtmpfs dev
mount -t tmpfs run run
mkdir run/guest
mount -t hostfs -o "$run" none run/guest
exec chroot . /bin/sh /run/guest/stage
