#!/bin/sh
# The guest's process 1. Its root consists of the host's files; everything that is written stays in
# memory. /run/guest is shared with the host, which waits for two files: `begun`, then `exit`.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
guest=/run/guest
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
mount -t bpf bpf /sys/fs/bpf 2>/dev/null
# The first listener of a tracepoint changes the kernel's code at every place where the tracepoint is,
# and so does the second one. An emulated CPU has trapped in softirq_exit while BPF programs were
# attached and detached there. Therefore, the most frequent tracepoints have two listeners from the
# start, which record nothing.
for instance in one other; do
    mkdir /sys/kernel/tracing/instances/$instance 2>/dev/null || continue
    echo 0 > /sys/kernel/tracing/instances/$instance/tracing_on
    for event in irq/softirq_entry irq/softirq_exit timer/hrtimer_start timer/hrtimer_expire_entry napi/napi_poll \
        net/net_dev_start_xmit sched/sched_waking tcp/tcp_probe tcp/tcp_rcv_space_adjust; do
        echo 1 > /sys/kernel/tracing/instances/$instance/events/$event/enable
    done 2>/dev/null
done
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
hostname guest
# Allow as many descriptors as systemd does; the kernel's own limit is 4096.
ulimit -n 524288
ip link set lo up
if [ -f $guest/modules ]; then
    mkdir -p "/lib/modules/$(uname -r)"
    mount --bind "$(cat $guest/modules)" "/lib/modules/$(uname -r)"
    modprobe -a -q virtio_net igb e1000e tun veth
fi
for device in /sys/class/net/*; do
    name=
    case $(cat "$device/address") in
        52:54:00:00:00:10) name=virtio0 ;;
        52:54:00:00:00:11) name=virtio1 ;;
        52:54:00:00:00:20) name=igb0 ;;
        52:54:00:00:00:21) name=igb1 ;;
        52:54:00:00:00:30) name=e1000e0 ;;
    esac
    [ -z "$name" ] || ip link set "${device##*/}" name $name
done
echo 1 > $guest/begun
(
    setsid sh $guest/command < /dev/null > $guest/stdout 2> $guest/stderr
    echo $? > $guest/exit.new
    mv $guest/exit.new $guest/exit
    sync
) &
command=$!
# A command may require the distribution's own process 1, whose output is then in the kernel's log.
trap 'trap "" USR1; exec /lib/systemd/systemd --log-target=kmsg' USR1
wait $command
# The host ends the guest when it has read `exit`; if it does not, the guest ends by itself.
echo 1 > /proc/sys/kernel/sysrq
sleep 10
echo o > /proc/sysrq-trigger
sleep 10
