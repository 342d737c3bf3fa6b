#!/bin/busybox sh
# First process of the machine that writes the disks of others: a network, Debian's iscsid, and ingot writer.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mkdir -p /run/lock/iscsi
exec </dev/null >/dev/console 2>&1
while read -r m; do insmod "/lib/modules/$m"; done </lib/modules/order
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
export PATH=/bin
iscsid -f &
ingot writer --endpoint "$(sed -n 's/.*endpoint=\([^ ]*\).*/\1/p' /proc/cmdline)"
echo "ingot writer ended: $?"
poweroff -f
