"""Drives a Redfish service with sushy, Ironic's own client, as Ironic's interfaces do, and prints what it found.

Arguments: address, user, password, file with the certificate, "session" or "basic", URLs of a BIOS and of an ISO.
"""
import json
import sys

import sushy
from sushy import auth

import boot
import dell
import lab as shared
import media
import work

address, user, password, ca, kind, image, iso = sys.argv[1:]
classes = {"session": auth.SessionAuth, "basic": auth.BasicAuth, "auto": auth.SessionOrBasicAuth}
authenticator = classes[kind](username=user, password=password)
lab = shared.Lab(address, authenticator, ca)
system, found = lab.system, lab.found
found.update(uuid=system.uuid, manufacturer=system.manufacturer, firmware=lab.managers[0].firmware_version)
try:
    found["macs"] = sorted(system.ethernet_interfaces.summary)
except sushy.exceptions.MissingAttributeError:
    lab.met.add("no_ethernet")

lab.on()
lab.restart()
if sushy.RESET_TYPE_NMI in system.get_allowed_reset_system_values():
    lab.power(sushy.RESET_TYPE_NMI, sushy.SYSTEM_POWER_STATE_ON)
lab.off()

boot.everything(lab)

found["processors"] = system.processors.summary.count
found["memory_gib"] = system.memory_summary.size_gib
found["disks"] = system.storage.drives_sizes_bytes
for state in (sushy.INDICATOR_LED_LIT, sushy.INDICATOR_LED_OFF):
    if system.indicator_led is not None:
        lab.tagged(lambda: system.set_indicator_led(state), system.path, {"IndicatorLED": state.value})
        system.refresh(force=True)
        if system.indicator_led != state:
            raise SystemExit("the lamp is %s" % system.indicator_led)

work.bios(lab)
work.secure_boot(lab)
lab.off()

media.declined(lab, iso)
drive = media.insert(lab, iso)
boot.choose(lab, boot.CD, boot.ONCE)
lab.on("media")
lab.off()
media.eject(lab, drive)
if "Dell" in system.manufacturer:
    dell.reset(lab)
    dell.import_boot(lab, iso)

lab.on()
work.firmware(lab, image)

service = lab.root.get_event_service()
subscription = service.subscriptions.create({"Destination": "https://192.0.2.1/events", "Protocol": "Redfish",
                                             "Context": "sushy", "EventTypes": ["Alert"]})
found["subscription"] = [subscription.destination, subscription.context]
found["kinds"] = len(service.get_event_types_for_subscription())
subscription.delete()
service.subscriptions.refresh(force=True)
if service.subscriptions.members_identities:
    raise SystemExit("a subscription is left")

try:
    system.set_system_boot_options(boot.PXE, enabled="nonsense")
except (sushy.exceptions.InvalidParameterValueError, sushy.exceptions.BadRequestError):
    found["refused"] = True
try:
    lab.root.get_system("/redfish/v1/Systems/none")
except sushy.exceptions.ResourceNotFoundError:
    found["missing"] = True
try:
    sushy.Sushy(address, auth=auth.BasicAuth(username=user, password="wrong"), verify=ca).get_system()
except sushy.exceptions.AccessError:
    found["denied"] = True
if kind != "basic":
    authenticator.close()
found.update(starts=lab.starts, met=sorted(lab.met))
print(json.dumps(found))
