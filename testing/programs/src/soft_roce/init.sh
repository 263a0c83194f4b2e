#!/bin/sh
# The first program of the guest. Creates the device rxe0, then runs the lines that arrive on the virtio port "agent": a token and a
# command each. After the command's output it prints a line with the token and the command's status.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
ulimit -l unlimited
while read -r module; do
    # A module of processors that QEMU does not emulate is refused.
    insmod "/modules/$module" 2>/dev/null || :
done </modules/order
for word in $(cat /proc/cmdline); do
    case $word in
    guest.mtu=*) mtu=${word#*=} ;;
    guest.ipv4=*) ipv4=${word#*=} ;;
    guest.ipv6=*) ipv6=${word#*=} ;;
    guest.peers=*) peers=${word#*=} ;;
    esac
done
debian-ip link set lo up
debian-ip link set eth0 mtu "$mtu"
debian-ip address add "$ipv4/24" dev eth0
debian-ip address add "$ipv6/64" dev eth0 nodad
debian-ip link set eth0 up
rdma link add rxe0 type rxe netdev eth0
until grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state; do
    sleep 0.05
done
# The device cannot use an address before the network has resolved it.
for peer in $(echo "$peers" | tr , ' '); do
    until ping -c 1 -W 1 "$peer" >/dev/null 2>&1; do
        sleep 0.1
    done
done
for port in /sys/class/virtio-ports/*; do
    if [ "$(cat "$port/name")" = agent ]; then
        agent=/dev/${port##*/}
    fi
done
exec 7<>"$agent"
set +e
echo "guest ready: Linux $(uname -r)"
while :; do
    # The port is at its end while no client is connected to QEMU's socket.
    read -r token line <&7 || { sleep 0.05; continue; }
    (eval "$line") >&7 2>&1 </dev/null
    echo "$token $?" >&7
done
