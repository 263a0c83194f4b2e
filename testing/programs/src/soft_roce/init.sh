#!/bin/sh
# The first program of the guest. Creates the device rxe0, then runs a shell for each TCP connection, which reads commands from it.
# If the set-up fails, the guest ends.
set -e
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
nc -ll -p 4000 -e /bin/sh &
until ss -Htln | grep -q ':4000 '; do
    sleep 0.05
done
echo "guest ready: Linux $(uname -r)"
wait
