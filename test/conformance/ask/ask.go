// Package ask makes requests to compare two servers by, from a seed: the same seed gives the same requests.
//
// What can be varied in a request is a deck of cards (deck.go): every route of the table with every version,
// identifier, value, argument, header and so on. A part of the deck is dealt for each seed; ten parts are the whole.
// The cards come in scenes (scene.go). A scene makes a node and what belongs to it, brings the node to a state, and
// plays its cards: each is a request that is right but for what the card changes. What a scene makes has UUIDs from the
// seed, so that an address needs no answer to be known; they begin with UUIDPrefix.
package ask

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// UUIDPrefix begins every UUID that a seed made.
const UUIDPrefix = "5eed"

// Newest is the newest requested version: that of Ironic 21.4.
const Newest = 82

// Parts is how many parts of the deck are the whole deck.
const Parts = 10

// Kinds of authentication, by Ironic's names; "" is none.
const (
	HTTPBasic = "http_basic"
	Keystone  = "keystone"
)

// Ask is a request.
type Ask struct {
	Scene   int               `json:"s"`
	Route   string            `json:"r"` // the line of the route table, or what else it is
	Method  string            `json:"m"`
	Path    string            `json:"p"` // with the query
	Version string            `json:"v,omitempty"`
	Header  map[string]string `json:"h,omitempty"`
	// Body may have {owner}, {lessee} and {other}, which stand for the IDs of Keystone's projects.
	Body string `json:"b,omitempty"`
	Wait string `json:"w,omitempty"` // the node whose work has to end before the next request
	Auth string `json:"a,omitempty"` // kind of authentication
	Role string `json:"o,omitempty"` // of the client; "" is the administrator

	Card  Card   `json:"-"` // the tested card; zero: none, the request prepares others
	State string `json:"-"` // of the node of the scene
}

// Route is a line of the route table.
type Route struct {
	Method, Path string
	Since        int // the minor version that brought it; 0: all have it
	Args         []string
}

// String is the line in the lists of differences.
func (r Route) String() string { return r.Method + " " + r.Path }

// Names are the {names} in the path.
func (r Route) Names() (names []string) {
	for seg := range strings.SplitSeq(r.Path, "/") {
		if strings.HasPrefix(seg, "{") {
			names = append(names, strings.Trim(seg, "{}"))
		}
	}
	return names
}

// Routes reads the route table from a server's description of itself (/openapi.json). Routes and arguments that are
// newer than Newest are left out.
func Routes(description []byte) ([]Route, error) {
	var d struct {
		Paths map[string]map[string]struct {
			Since      string `json:"x-openstack-min-version"`
			Parameters []struct {
				In, Name string
				Since    string `json:"x-openstack-min-version"`
			}
		}
	}
	if err := json.Unmarshal(description, &d); err != nil {
		return nil, fmt.Errorf("read the description of the API: %w", err)
	}
	var rs []Route
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		if path != "/" && path != "/v1" && !strings.HasPrefix(path, "/v1/") || path == "/v1/continue_inspection" {
			continue // the last is that of ironic-inspector before it was Ironic's, in all versions
		}
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			op := d.Paths[path][method]
			r := Route{Method: strings.ToUpper(method), Path: path, Since: minor(op.Since)}
			if r.Since > Newest {
				continue
			}
			for _, p := range op.Parameters {
				// Since 2024 a history can be sorted, in all versions.
				later := strings.HasSuffix(path, "/history") && strings.HasPrefix(p.Name, "sort_")
				// Below a node or a port group Ironic forgets to look at them.
				forgotten := strings.Contains(path, "}/") && (p.Name == "address" || p.Name == "node")
				if p.In == "query" && minor(p.Since) <= Newest && !later && !forgotten {
					r.Args = append(r.Args, p.Name)
				}
			}
			rs = append(rs, r)
		}
	}
	if len(rs) < 110 {
		return nil, errors.New("the description of the API has not the routes that Ironic 21.4 knows")
	}
	return rs, nil
}

// minor is the second number of a version; 0 of none.
func minor(version string) int {
	_, text, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}
