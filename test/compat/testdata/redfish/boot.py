"""Chooses what the machine boots from, as Ironic does."""
import time

import sushy

import lab as shared

PXE, CD = sushy.BOOT_SOURCE_TARGET_PXE, sushy.BOOT_SOURCE_TARGET_CD
ONCE, ALWAYS = sushy.BOOT_SOURCE_ENABLED_ONCE, sushy.BOOT_SOURCE_ENABLED_CONTINUOUS


def ask(lab, **choice):
    """Sends a choice, again where Ironic or newer versions of sushy do so."""
    lab.system.refresh(force=True)
    if choice.get("target") == CD and lab.system.json.get("Model") == "ARS-111GL-NHR":
        lab.system.manufacturer = None  # newer versions of sushy know the model, and do not ask for UsbCd
        if sushy.BOOT_SOURCE_TARGET_USB_CD in lab.system.get_allowed_system_boot_source_values():
            lab.met.add("cd_beside_usb_cd")
    for _ in range(10):
        try:
            return lab.system.set_system_boot_options(**choice)
        except sushy.exceptions.BadRequestError as e:
            if shared.POST in str(e):
                lab.met.add("in_post")
                time.sleep(0.05)
            elif "PropertyUnknown" in str(e) and "BootSourceOverrideMode" in str(e):
                lab.met.add("no_boot_mode")
                choice["mode"] = None
            else:
                raise
        except sushy.exceptions.HTTPError as e:
            if e.status_code != 412 or lab.sent[-1][2] != "":
                raise
            lab.met.add("empty_etag")
            lab.system._get_etag = lambda: None
    raise SystemExit("the controller does not take %s" % choice)


def read(lab):
    """The choice: of the system, or where it is shown as one to come."""
    lab.system.refresh(force=True)
    boot = lab.system.json["Boot"]
    if lab.system._settings and lab.system._settings.resource_uri:
        to_come = lab.conn.get(lab.system._settings.resource_uri).json()["Boot"]
        if to_come["BootSourceOverrideTarget"] != boot["BootSourceOverrideTarget"]:
            lab.met.add("future_boot")
        boot = to_come
    return (boot["BootSourceOverrideTarget"], boot["BootSourceOverrideEnabled"], boot.get("BootSourceOverrideMode"))


def choose(lab, target, enabled):
    ask(lab, target=target, enabled=enabled, mode=shared.UEFI)
    got = read(lab)
    lab.found["boot"].append([v or "" for v in got])
    if got[0] == "UsbCd":
        lab.met.add("usb_cd")  # sushy itself asks Supermicro's controllers for it
    elif got[0] != target.value:
        raise SystemExit("the boot device is %s" % got[0])
    if got[1] != enabled.value:
        raise SystemExit("the boot choice is %s" % got[1])


def parts(lab):
    """Sends parts of a choice, as Ironic does where nothing else changes."""
    always = sushy.BOOT_SOURCE_ENABLED_CONTINUOUS
    try:
        ask(lab, target=PXE, enabled=always, mode=shared.UEFI)
    except sushy.exceptions.BadRequestError as e:
        if "BootSourceOverrideEnabled" not in str(e):
            raise
        lab.met.add("once_only")
        always = ONCE
        ask(lab, target=PXE, enabled=always, mode=shared.UEFI)
    for choice in ({"target": CD}, {"target": PXE, "enabled": always}):
        before = len(lab.sent)
        try:
            ask(lab, **choice)
        except sushy.exceptions.HTTPError:
            # sushy asks again without ETag, and that answer is the one that it shows
            if not any("PropertyMissing" in s[5] for s in lab.sent[before:]):
                raise
            lab.met.add("whole_boot")
            continue
        _, enabled, mode = read(lab)
        if enabled != always.value:
            lab.met.add("enabled_lost")
        if mode == "Legacy":
            lab.met.add("mode_lost")
            ask(lab, mode=shared.UEFI)
            if read(lab)[2] != "UEFI":
                raise SystemExit("the boot mode is %s" % read(lab)[2])


def everything(lab):
    parts(lab)
    for target in (PXE, sushy.BOOT_SOURCE_TARGET_HDD, CD):
        for enabled in (ONCE, ALWAYS):
            if enabled != ALWAYS or "once_only" not in lab.met:
                choose(lab, target, enabled)
    lab.etags()
