#!/bin/busybox sh
# Called by udhcpc for what it got.
case $1 in
bound | renew)
	ip addr flush dev "$interface"
	ip addr add "$ip/${mask:-24}" dev "$interface"
	for r in $router; do ip route replace default via "$r" dev "$interface" && break; done
	: >/etc/resolv.conf
	for d in $dns; do echo "nameserver $d" >>/etc/resolv.conf; done
	[ "$1" = bound ] && echo "INGOT-TINY-NET $interface $ip" >/dev/console
	;;
esac
