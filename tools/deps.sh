#!/bin/sh
# Installs, with apt, the Debian packages that a make target needs: build, lab, images, test, bench.
# Says what is missing and what for, asks nothing, and does nothing when everything is there.
set -eu

need() { # package, what it is for
	if ! dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; then
		missing="$missing $1"
		printf '  %-24s %s\n' "$1" "$2"
	fi
}

program() { # one that may be installed in another way, as npm with Node's own packages
	command -v "$1" >/dev/null || need "$1" "$2"
}

group() {
	case $1 in
	build)
		need ca-certificates "to fetch Go modules"
		;;
	lab)
		need qemu-system-x86 "the machines of the virtual rack"
		need ovmf "their UEFI firmware"
		need ipxe "network boot loaders that the conductor serves"
		need ipxe-qemu "network boot ROMs of the machines"
		need seabios "their BIOS"
		need iproute2 "the rack's network namespace"
		need openssh-client "to log in to the demo's new system"
		;;
	images)
		need mmdebstrap "makes the Debian image"
		need qemu-utils "writes it as qcow2"
		need e2fsprogs "makes its file system"
		need busybox-static "the tiny image's programs"
		need grub-common "boot loader, BIOS and UEFI"
		need grub-pc-bin "boot loader, BIOS"
		need grub-efi-amd64-signed "boot loader, Secure Boot"
		need shim-signed "boot loader, Secure Boot"
		;;
	test)
		need gcc "the race detector"
		need libc6-dev "the race detector"
		need protobuf-compiler "checks that generated code is up to date"
		need libprotobuf-dev "checks that generated code is up to date"
		need dosfstools "an independent checker of FAT"
		need mtools "an independent reader of FAT"
		need ipmitool "an independent IPMI client"
		need python3-openstackclient "the openstack command"
		need python3-ironicclient "its baremetal part"
		need python3-openstacksdk "the library beneath it"
		need curl "what the README shows"
		need jq "what the documentation shows"
		need genisoimage "reads config drives back, makes an ISO image to boot"
		need grub-efi-amd64-bin "the loader on that image"
		need gdisk "checks partition tables"
		need fdisk "checks partition tables"
		need zstd "makes and unpacks images"
		need qemu-block-extra "writes an exported disk over iSCSI"
		need xz-utils "packs images to unpack"
		need lz4 "packs images to unpack"
		need bzip2 "packs images to unpack"
		need kmod "checks the ramdisk's module indices"
		need bsdutils "a terminal for serial over LAN"
		need util-linux "loop devices, and what it sees on a disk"
		need mount "loop devices"
		need xfsprogs "makes file systems to erase and to read"
		need btrfs-progs "makes file systems to read"
		need minisign "signs published images"
		need openssl "makes keys and signatures like cosign's"
		need docker-registry "an OCI registry to publish to"
		need postgresql "a database server of the store's tests"
		need faketime "sets that server's clock wrong"
		need pgbouncer "pools connections to it"
		need dnsmasq-base "a DHCP server that is not ours"
		need keepalived "an address that moves between conductors"
		need lintian "checks Debian packages"
		need nftables "sets up a firewall to find"
		need rpm "reads the other packages"
		need gnupg "signs and checks a release"
		need gpgv "checks it with one key alone"
		need mmdebstrap "makes the system that packages are installed in"
		need systemd "measures what the service may do"
		need man-db "shows the manual pages"
		need chromium "a browser for the tests of the dashboard"
		program npm "fetches what the dashboard is bundled from, and axe for its tests"
		need prometheus "promtool, which checks and tests the rules for alerts"
		;;
	database)
		need postgresql "the database of several conductors"
		;;
	bench)
		need curl "fetches, in the pipe that is compared with"
		need zstd "packs the image, and unpacks it in that pipe"
		need mount "loop devices"
		need qemu-utils "packs the image, and unpacks it in the other pipe"
		need e2fsprogs "makes its file system"
		need fdisk "makes its partition table"
		need iproute2 "a network that is as slow as real ones"
		;;
	*)
		echo "deps.sh: unknown group $1 (build, lab, images, test, database, bench)" >&2
		exit 2
		;;
	esac
}

missing=
list=$(for g in "$@"; do group "$g"; done; echo "=$missing")
missing=$(printf "%s\n" "$list" | sed -n "s/^= *//p")
# Kernels for the ramdisk are downloaded, not installed: for that apt has to know what there is, and not that of long ago.
known() {
	[ -n "$(find /var/lib/apt/lists -maxdepth 0 -mtime -7)" ] && apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1
}
if [ -z "$missing" ] && known; then
	exit 0
fi

if [ -n "$missing" ]; then
	echo "Installing with apt:"
	printf '%s\n' "$list" | grep -v '^=' | sort -u
else
	echo "Fetching apt's list of packages, for the ramdisk's kernel."
fi
if [ "$(id -u)" != 0 ]; then
	echo "deps.sh: this needs root: run it with sudo, or: sudo apt-get update && sudo apt-get install" $missing >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt="apt-get -q -y -o DPkg::Lock::Timeout=300"
run() {
	if ! "$@" >"$log" 2>&1; then
		cat "$log" >&2
		echo "deps.sh: '$*' failed; its output is above" >&2
		exit 1
	fi
}
run $apt update
# A half-upgraded machine refuses every installation until its own packages are consistent again.
apt-get check >/dev/null 2>&1 || run $apt -f install
[ -z "$missing" ] || run $apt install --no-install-recommends $missing
