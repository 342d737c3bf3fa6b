#!/bin/busybox sh
# First process of the tiny image: loads its modules, reads the config drive, says on the console what it found, offers a login.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /run /tmp /mnt /cd
while read -r m; do insmod "/lib/modules/$m" 2>/dev/null; done </lib/modules/order

# Puts a software RAID together from those of its members that are there: partitions with metadata of format 1.2.
assemble() {
	[ -e /sys/module/md_mod/parameters/new_array ] && [ ! -e /sys/block/md0 ] || return 0
	members=
	for p in /sys/class/block/*/partition; do
		d=${p%/partition}
		magic=$(dd if="/dev/${d##*/}" bs=4096 skip=1 count=1 2>/dev/null | head -c 4 | hexdump -v -e '1/1 "%02x"')
		[ "$magic" = fc4e2ba9 ] && members="$members $(cat "$d/dev")"
	done
	[ -n "$members" ] || return 0
	echo md0 >/sys/module/md_mod/parameters/new_array
	echo 1.2 >/sys/block/md0/md/metadata_version
	for m in $members; do echo "$m" >/sys/block/md0/md/new_dev; done
	echo active >/sys/block/md0/md/array_state
}

# Disks behind SCSI and SATA show up a moment after their driver.
wanted=$(sed -n 's/.*root=\(UUID=[^ ]*\).*/\1/p' /proc/cmdline)
root= tries=0
while [ -z "$root" ] && [ $tries -lt 100 ]; do
	root=$(findfs "$wanted" 2>/dev/null) || { root= tries=$((tries + 1)); assemble; usleep 100000; }
done

host=none uuid=none keys=0 data=none cfg=$(findfs LABEL=config-2 2>/dev/null || findfs LABEL=CONFIG-2 2>/dev/null)
if [ -n "$cfg" ]; then
	if mount -o ro -t iso9660 "$cfg" /cd 2>/dev/null || mount -o ro -t vfat "$cfg" /cd 2>/dev/null; then
		meta=$(tr -d '\n' </cd/openstack/latest/meta_data.json)
		value() { printf '%s' "$meta" | sed -n "s/.*\"$1\" *: *\"\([^\"]*\)\".*/\1/p"; }
		host=$(value hostname)
		uuid=$(value uuid)
		keys=$(printf '%s' "$meta" | sed -n 's/.*"public_keys" *: *{\([^}]*\)}.*/\1/p' | grep -o ': *"[a-z]' | wc -l)
		[ -f /cd/openstack/latest/user_data ] && data=$(sha256sum </cd/openstack/latest/user_data | cut -d' ' -f1)
		bond=$(value bond)
		vlan=$(value vlan)
		[ -n "$host" ] && hostname "$host"
	else
		cfg="$cfg(unreadable)"
	fi
fi

# A mark on the root file system: how often it was started.
boots=unknown
if [ -n "$root" ] && mount -t ext4 "$root" /mnt; then
	boots=$(($(cat /mnt/boots 2>/dev/null || echo 0) + 1))
	echo $boots >/mnt/boots
	umount /mnt
fi

raid=
[ -e /sys/block/md0/md ] && raid=" raid=$(cat /sys/block/md0/md/level) degraded=$(cat /sys/block/md0/md/degraded)"

efi=0
[ -d /sys/firmware/efi ] && efi=1
echo "INGOT-TINY up=$(cut -d' ' -f1 /proc/uptime) host=${host:-none} uuid=${uuid:-none} ssh_keys=$keys user_data=$data root=${root:-none} cfg=${cfg:-none} efi=$efi boots=$boots$raid" >/dev/console

ip link set lo up
nics=$(ls /sys/class/net)
if [ -n "$bond" ]; then
	while read -r m; do insmod "/lib/modules/$m" max_bonds=0 2>/dev/null; done </lib/modules/order.bond
	echo +bond0 >/sys/class/net/bonding_masters
	echo "$bond" >/sys/class/net/bond0/bonding/mode
	echo 100 >/sys/class/net/bond0/bonding/miimon
	for nic in $nics; do
		[ "$nic" = lo ] || echo "+$nic" >/sys/class/net/bond0/bonding/slaves
	done
	nics=bond0
	ip link set bond0 up
	[ -n "$vlan" ] && ip link add link bond0 name "bond0.$vlan" type vlan id "$vlan" && nics="bond0 bond0.$vlan"
	(
		cd /sys/class/net/bond0/bonding || exit
		tries=0
		while [ "$(cat ad_num_ports)" != "$(wc -w <slaves)" ] && [ $tries -lt 60 ]; do sleep 1; tries=$((tries + 1)); done
		echo "INGOT-TINY-BOND $(cat slaves) ports=$(cat ad_num_ports) partner=$(cat ad_partner_mac)" >/dev/console
	) &
fi
for nic in $nics; do
	[ "$nic" = lo ] && continue
	ip link set "$nic" up
	udhcpc -b -S -i "$nic" -s /etc/dhcp.sh >/dev/null 2>&1 &
done

while :; do getty -L ttyS0 115200 vt100 || sleep 1; done
