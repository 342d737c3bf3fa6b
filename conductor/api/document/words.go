package document

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/rest"
)

var customTrait = regexp.MustCompile(`^CUSTOM_[A-Z0-9_]+$`)

// standardTraits are the names of the os-traits library, one in a line.
//
//go:embed traits.txt
var standardTraits string

// isStandard reports whether a trait is one of standardTraits.
var isStandard = func() map[string]bool {
	is := map[string]bool{}
	for name := range strings.FieldsSeq(standardTraits) {
		is[name] = true
	}
	return is
}()

// urlName matches names in addresses; hostName matches names before rest.VersionURLNames.
var (
	urlName  = regexp.MustCompile(`^[A-Za-z0-9._~-]+$`)
	hostName = regexp.MustCompile(
		`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)
)

// ReservedNames are words that mean something else in the same place of an address.
var ReservedNames = []string{"maintenance", "management", "states", "vendor_passthru", "detail", "validate"}

// CheckTrait refuses invalid names of traits.
func CheckTrait(t string) *rest.Error {
	if fault := TraitFault(t); fault != "" {
		return rest.BadRequest("Schema error for trait: %s", fault)
	}
	return nil
}

// TraitsSchema is that of a body with a list of traits.
var TraitsSchema = &rest.Schema{Types: []string{"object"}, Closed: true, Props: map[string]*rest.Schema{
	"traits": {Types: []string{"array"}, Items: &rest.Schema{Types: []string{"string"}}},
}}

// Traits reads a body with a list of traits and returns each once; set is false without a list.
func Traits(body map[string]any) (traits []string, set bool, err *rest.Error) {
	if fault := TraitsSchema.Check(body); fault != "" {
		return nil, false, rest.BadRequest("Schema error for body: %s", fault)
	}
	list, set := body["traits"].([]any)
	for _, t := range list {
		name, _ := t.(string)
		if err := CheckTrait(name); err != nil {
			return nil, set, err
		}
		if !slices.Contains(traits, name) {
			traits = append(traits, name)
		}
	}
	return traits, set, nil
}

// TraitFault returns the fault of a trait's name, or "".
func TraitFault(t string) string {
	if len(t) > 255 {
		return rest.Shown(t) + " is too long"
	}
	if !customTrait.MatchString(t) && !isStandard[t] {
		return fmt.Sprintf("%s is not valid under any of the given schemas. Possible root cause: %s does not match %s",
			rest.Shown(t), rest.Shown(t), rest.Repr(customTrait.String()))
	}
	return ""
}

// Boolean reads a boolean in all the words that clients of this API may use.
func Boolean(name string, v any) (bool, *rest.Error) {
	switch x := v.(type) {
	case bool:
		return x, nil
	case string:
		switch strings.ToLower(strings.TrimSpace(x)) {
		case "1", "t", "true", "y", "yes", "on":
			return true, nil
		case "0", "f", "false", "n", "no", "off":
			return false, nil
		}
	}
	return false, rest.BadRequest(
		"Invalid %s: Unrecognized value %s, acceptable values are: '0', '1', 'f', 'false', 'n', 'no', 'off', 'on', 't', 'true', 'y', 'yes'", name, rest.Shown(v))
}

// Argument reads a boolean of a call, which may be one of the numbers 0 and 1, too.
func Argument(name string, v any) (bool, *rest.Error) {
	switch v.(type) {
	case float64, json.Number:
		v = fmt.Sprint(v)
	}
	return Boolean(name, v)
}

// IsUUID reports whether s is a UUID in its usual form.
func IsUUID(s string) bool { return len(s) == 36 && uuid.Validate(s) == nil }

// UUID reads a UUID in any form that clients write, in capitals or without hyphens, and returns the stored form.
func UUID(s string) (string, bool) {
	if len(s) != 36 && len(s) != 32 {
		return "", false
	}
	id, err := uuid.Parse(s)
	return id.String(), err == nil
}

// NewUUID is the UUID that the document of a new resource gives it; "" if it gives none.
func NewUUID(d map[string]any) (string, *rest.Error) {
	s, given := d["uuid"].(string)
	id, ok := UUID(s)
	if given && !ok {
		return "", rest.BadRequest("Expected UUID for uuid: %s", s)
	}
	return id, nil
}

// ValidName reports whether a node may have the name.
func ValidName(v rest.Version, name string) bool { return !IsUUID(name) && ValidLabel(v, name) }

// ValidLabel reports whether a port group or an allocation may have the name.
func ValidLabel(v rest.Version, name string) bool {
	if len(name) > 255 {
		return false
	}
	if v < rest.VersionURLNames {
		return hostName.MatchString(name)
	}
	return urlName.MatchString(name)
}

// IsName reports whether s can be a name in an address.
func IsName(s string) bool { return len(s) <= 255 && urlName.MatchString(s) }

// HardwareAddress reads a MAC of six bytes and returns it in lower case with colons.
func HardwareAddress(s string) (string, bool) {
	a, err := net.ParseMAC(s)
	if err != nil || len(a) != 6 || strings.Count(s, ":") != 5 {
		return "", false
	}
	return a.String(), true
}
