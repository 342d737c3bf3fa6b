package site

import "strings"

// offTexts are the lines that docs/howto/dhcp-servers.md adds to a DHCP server for mode off, with ADDRESS for the
// conductor's.
var offTexts = map[string]string{
	Dnsmasq: `dhcp-userclass=set:ipxe,iPXE
dhcp-match=set:bios,option:client-arch,0
dhcp-match=set:uefi,option:client-arch,7
dhcp-match=set:uefi,option:client-arch,9
dhcp-match=set:http,option:client-arch,16
dhcp-boot=tag:ipxe,http://ADDRESS:8080/boot.ipxe?mac=${netX/mac}&uuid=${uuid}
dhcp-option=tag:ipxe,encap:175,176,1b
dhcp-boot=tag:!ipxe,tag:bios,undionly.kpxe,,ADDRESS
dhcp-boot=tag:!ipxe,tag:uefi,snponly.efi,,ADDRESS
dhcp-boot=tag:!ipxe,tag:http,http://ADDRESS:8080/loader/snponly.efi
dhcp-option-force=tag:!ipxe,tag:http,60,HTTPClient`,
	Dhcpd: `option arch code 93 = unsigned integer 16;
option space ipxe;
option ipxe-options code 175 = encapsulate ipxe;
option ipxe.no-pxedhcp code 176 = unsigned integer 8;

if suffix(option user-class, 4) = "iPXE" {
  filename "http://ADDRESS:8080/boot.ipxe?mac=${netX/mac}&uuid=${uuid}";
  option ipxe.no-pxedhcp 1;
} elsif option arch = 00:00 {
  next-server ADDRESS;
  filename "undionly.kpxe";
} elsif option arch = 00:07 or option arch = 00:09 {
  next-server ADDRESS;
  filename "snponly.efi";
} elsif option arch = 00:10 {
  option vendor-class-identifier "HTTPClient";
  filename "http://ADDRESS:8080/loader/snponly.efi";
}`,
	Kea: `"client-classes": [
  { "name": "ipxe",
    "test": "substring(option[77].hex, -4, all) == 'iPXE'",
    "boot-file-name": "http://ADDRESS:8080/boot.ipxe?mac=${netX/mac}&uuid=${uuid}",
    "option-data": [ { "code": 175, "csv-format": false, "data": "B00101" } ] },
  { "name": "bios",
    "test": "not member('ipxe') and option[93].hex == 0x0000",
    "next-server": "ADDRESS", "boot-file-name": "undionly.kpxe" },
  { "name": "uefi",
    "test": "not member('ipxe') and (option[93].hex == 0x0007 or option[93].hex == 0x0009)",
    "next-server": "ADDRESS", "boot-file-name": "snponly.efi" },
  { "name": "uefi-http",
    "test": "not member('ipxe') and option[93].hex == 0x0010",
    "boot-file-name": "http://ADDRESS:8080/loader/snponly.efi",
    "option-data": [ { "name": "vendor-class-identifier", "data": "HTTPClient" } ] }
]`,
}

// OffText is the part of a DHCP server's configuration that has machines boot from the conductor with an address, in
// mode off. For Kea it is a member of the object Dhcp4.
func OffText(dhcp, address string) string {
	return strings.ReplaceAll(offTexts[dhcp], "ADDRESS", address)
}
