package vmedia

import "slices"

// Behaviours of controllers that concern virtual media, in addition to those of package redfish: that one's type
// Behaviour takes them.
const (
	// MediaBootAsUSBCD has the boot target UsbCd for virtual media; Cd is a drive of the machine's own, which it lacks.
	MediaBootAsUSBCD = "virtual media boot as UsbCd"
	// ListsUSBCD lists the boot target UsbCd, which starts nothing; virtual media are Cd.
	ListsUSBCD = "UsbCd is listed only"
	// CDIsOwnDrive starts from a drive of the machine's own with the boot target Cd, and has no target for virtual
	// media.
	CDIsOwnDrive = "Cd is the machine's own drive"
	// StaysInserted leaves Inserted true after a medium was ejected.
	StaysInserted = "Inserted stays true"
	// NameStays leaves ImageName after a medium was ejected.
	NameStays = "ImageName stays"
	// OnlyImage declines every parameter of InsertMedia, and property beside Image, that may be left out.
	OnlyImage = "insert takes Image only"
	// NoInserted declines the parameters Inserted and WriteProtected.
	NoInserted = "insert declines Inserted and WriteProtected"
	// WantsInserted keeps an image that is set without Inserted and does not attach it.
	WantsInserted = "PATCH of Image attaches nothing without Inserted"
	// WantsProtocol declines InsertMedia without TransferProtocolType, with a message of an older registry.
	WantsProtocol = "insert wants TransferProtocolType"
	// WantsMethod declines InsertMedia without TransferMethod, with an error that names it in its text only.
	WantsMethod = "insert wants TransferMethod"
	// WantsCredentials declines InsertMedia without UserName and Password.
	WantsCredentials = "insert wants credentials"
	// EjectWantsBody declines EjectMedia without a body.
	EjectWantsBody = "eject wants a body"
	// PlainURL declines addresses of images with ? or &.
	PlainURL = "no query in addresses of images"
	// NoIPv6 declines images at addresses of IPv6.
	NoIPv6 = "no IPv6 for images"
	// InternalSlots has two drives first that are not for clients: one declines InsertMedia with 405, one lacks the
	// action.
	InternalSlots = "internal slots first"
	// OnlyDVD has drives for DVDs and none for CDs.
	OnlyDVD = "DVD only"
	// FailsFirst answers the first insertions with 500.
	FailsFirst = "insertions fail at first"
	// NoMediaLicence has no licence for virtual media.
	NoMediaLicence = "no licence for virtual media"
)

// insertion is how a slot takes an image.
type insertion int

const (
	byAction insertion = iota // InsertMedia and EjectMedia
	byPatch                   // of Image
	byBoth
	never    // by upload, or by a program on the administrator's computer
	declined // has the actions, and declines them
)

// slot is a drive of the controller's.
type slot struct {
	id    string
	types []string
	takes insertion
}

// model is the drives of a personality, as data.
type model struct {
	// under is whose the collection is, Systems or Managers; linked says that the other one has a link to it.
	under  string
	linked bool
	// verify says that certificates of image servers can be checked.
	verify bool
	slots  []slot
}

var (
	disc  = []string{"CD", "DVD"}
	stick = []string{"Floppy", "USBStick"}
	both  = []string{"CD", "USBStick"}
)

var idrac9 = model{under: "Managers", verify: true,
	slots: []slot{{"RemovableDisk", stick, byAction}, {"CD", disc, byAction}}}

// models has each personality's.
var models = map[string]model{
	"generic": {under: "Systems", linked: true, verify: true,
		slots: []slot{{"CD", disc, byBoth}, {"USB", stick, byBoth}}},
	"dell-idrac9":   idrac9,
	"dell-idrac9-5": idrac9,
	"dell-idrac10":  {under: "Systems", verify: true, slots: []slot{{"1", both, byAction}}},
	"hpe-gen9":      {under: "Managers", slots: []slot{{"1", stick, byPatch}, {"2", disc, byPatch}}},
	"hpe-ilo5":      {under: "Managers", slots: []slot{{"1", stick, byAction}, {"2", disc, byAction}}},
	"hpe-ilo6":      {under: "Managers", verify: true, slots: []slot{{"1", stick, byAction}, {"2", disc, byAction}}},
	"lenovo-xcc": {under: "Managers", slots: []slot{{"RDOC1", both, never}, {"RDOC2", both, never},
		{"EXT1", both, byPatch}, {"EXT2", both, byPatch}, {"EXT3", both, byPatch}, {"EXT4", both, byPatch},
		{"Remote1", both, never}, {"Remote2", both, never}, {"Remote3", both, never}, {"Remote4", both, never}}},
	"supermicro": {under: "Managers", slots: []slot{{"CD1", disc, byAction}}},
	"ami":        {under: "Managers", slots: []slot{{"CD1", disc, byAction}, {"HD1", []string{"USBStick"}, byAction}}},
	"openbmc":    {under: "Managers", slots: []slot{{"Slot_0", both, never}, {"Slot_2", both, byAction}}},
}

// modelOf returns a personality's drives; those of one that is not in the table are the generic one's.
func modelOf(personality string, has func(string) bool) model {
	m, ok := models[personality]
	if !ok {
		m = models["generic"]
	}
	if has(OnlyDVD) {
		m.slots = slices.Clone(m.slots)
		for i := range m.slots {
			if m.slots[i].disc() {
				m.slots[i].types = []string{"DVD"}
			}
		}
	}
	if has(InternalSlots) {
		m.slots = append([]slot{{"internal-1", disc, declined}, {"internal-2", disc, never}}, m.slots...)
	}
	return m
}

// drive is the number of the machine's drive that belongs to a slot; ok is false when there is none.
func (m model) drive(i int) (n int, ok bool) {
	for _, before := range m.slots[:i] {
		if before.disc() {
			n++
		}
	}
	return n, m.slots[i].disc()
}

// disc reports whether discs can be put in by a client.
func (s slot) disc() bool {
	takes := s.takes != never && s.takes != declined
	return takes && (slices.Contains(s.types, "CD") || slices.Contains(s.types, "DVD"))
}

// acts reports whether a slot has working actions, patched whether a PATCH of Image inserts.
func (s slot) acts() bool    { return s.takes == byAction || s.takes == byBoth }
func (s slot) patched() bool { return s.takes == byPatch || s.takes == byBoth }

// Drives is how many drives for discs a machine with a controller of this personality has.
func Drives(personality string) (n int) {
	for _, s := range modelOf(personality, func(string) bool { return false }).slots {
		if s.disc() {
			n++
		}
	}
	return n
}
