"""Puts an image into a virtual drive, as Ironic does, and takes it out."""
import time

import sushy
from sushy import utils
from sushy.resources.manager import virtual_media

CD, DVD = sushy.VIRTUAL_MEDIA_CD, sushy.VIRTUAL_MEDIA_DVD


def drives(lab):
    """The drives of the system, or those of its managers. Newer versions of sushy have the first as a property."""
    try:
        path = utils.get_sub_resource_path_by(lab.system, "VirtualMedia")
    except sushy.exceptions.MissingAttributeError:
        return [d for m in lab.managers for d in m.virtual_media.get_members()]
    lab.met.add("drives_of_system")
    return virtual_media.VirtualMediaCollection(lab.conn, path, redfish_version=lab.root.redfish_version,
                                                root=lab.root).get_members()


def put(lab, drive, url):
    more = {}
    for _ in range(6):
        try:
            return drive.insert_media(url, **more)
        except sushy.exceptions.ServerSideError:
            lab.met.add("insert_again")
            time.sleep(0.05)
        except sushy.exceptions.BadRequestError as e:
            # Newer versions of sushy find out themselves what is missing besides TransferProtocolType.
            if "TransferMethod" in str(e) and "transfer_method" not in more:
                lab.met.add("wants_method")
                more["transfer_method"] = sushy.TransferMethod.STREAM
            elif "requires the parameter UserName" in str(e) and "username" not in more:
                lab.met.add("wants_credentials")
                more["username"] = more["password"] = "none"
            else:
                raise
    raise SystemExit("the controller takes no image")


def insert(lab, url):
    """Uses the first drive for discs that takes the image."""
    found = drives(lab)
    if [d.identity for d in found] == ["1"]:
        lab.met.add("only_slot_1")
    for drive in found:
        if CD not in drive.media_types:
            if DVD not in drive.media_types:
                continue
            lab.met.add("dvd_only")
        try:
            put(lab, drive, url)
        except sushy.exceptions.MissingActionError:
            lab.met.add("slot_without_action")
        except sushy.exceptions.HTTPError as e:
            if e.status_code not in (400, 405):
                raise
            lab.met.add("slot_refuses")
        else:
            drive.refresh(force=True)
            if drive.image != url or not drive.inserted:
                raise SystemExit("the drive has %s, inserted %s" % (drive.image, drive.inserted))
            method, _, _, body = lab.sent[-2][:4]
            if method == "PATCH":
                lab.met.add("media_by_patch")
            if "TransferProtocolType" in body:
                lab.met.add("wants_protocol")
            return drive
    raise SystemExit("no drive takes the image")


def eject(lab, drive):
    drive.eject_media()
    if [s[3:5] for s in lab.sent[-2:]] == [(None, 400), ({}, 204)]:
        lab.met.add("eject_body")
    drive.refresh(force=True)
    if drive.image is not None:
        raise SystemExit("the drive has %s" % drive.image)
    if drive.inserted:
        lab.met.add("stays_inserted")
    if drive.image_name:
        lab.met.add("name_stays")


def declined(lab, url):
    """Asks for what some controllers decline: an address with a query, and what older versions of sushy sent."""
    drive = insert(lab, url)
    eject(lab, drive)
    for more, word in (("?token=1", "query_refused"), ("?token=1&part=2", "ampersand_refused")):
        try:
            put(lab, drive, url + more)
        except sushy.exceptions.BadRequestError:
            lab.met.add(word)
        else:
            drive.refresh(force=True)
            if drive.image != url + more:
                raise SystemExit("the drive has %s" % drive.image)
            eject(lab, drive)
    try:
        drive.insert_media("http://[::1]:1/none.iso")
    except sushy.exceptions.HTTPError as e:  # the others find no server there
        if "ValueFormatError" in str(e):
            lab.met.add("no_ipv6")
    else:
        raise SystemExit("a drive takes an image that is not there")
    if not drive._actions or not drive._actions.insert_media:
        return
    try:
        lab.conn.post(drive._actions.insert_media.target_uri,
                      data={"Image": url, "Inserted": True, "WriteProtected": True})
    except sushy.exceptions.BadRequestError as e:
        if "ActionParameterNotSupported" in str(e):
            lab.met.add("inserted_refused")
    else:
        eject(lab, drive)
