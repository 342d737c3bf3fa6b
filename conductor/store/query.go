package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
)

// nodeColumns are the searchable copies of a node's fields; columns returns their values in the same order.
var nodeColumns = []string{
	"name", "instance_uuid", "instance_name", "driver", "provision_state", "target_provision_state",
	"provision_updated_at", "power_state", "target_power_state", "reservation", "maintenance", "fault", "retired",
	"protected", "resource_class", "conductor_group", "conductor", "owner", "lessee", "shard", "parent_node",
	"chassis_uuid", "description", "busy", "kept",
}

func columns(n *node.Node) []any {
	return []any{
		null(n.Name), null(n.InstanceUUID), n.InstanceName, n.Driver, string(n.Provision), string(n.TargetProvision),
		micros(n.ProvisionUpdatedAt), n.Power, n.TargetPower, n.Reservation, bit(n.Maintenance), n.Fault,
		bit(n.Retired), bit(n.Protected), n.ResourceClass, n.ConductorGroup, n.Conductor, n.Owner, n.Lessee, n.Shard,
		n.ParentNode, n.ChassisUUID, n.Description,
		bit(n.Job != nil || n.TargetPower != "" || n.Reservation != "" || !n.Provision.IsStable()),
		bit(n.Boot != nil && (n.Boot.Kept || n.Provision == node.Rescue && !n.Boot.Ended)),
	}
}

func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Query says which nodes, in which order. The zero value is all of them in the order they were made.
type Query struct {
	// Equal to; nil: whatever it is. A pointer to "" finds nodes where the field is empty.
	InstanceUUID, InstanceName, Driver, ResourceClass, ConductorGroup, Conductor, Owner, Lessee *string
	Shard, ParentNode, ChassisUUID, Fault, Name                                                 *string

	Project             *string // owner or lessee
	DescriptionContains *string // without regard to case (ASCII); "": there is one
	Provision           *node.State
	ProvisionIn         []node.State
	Shards              []string
	Associated          *bool // has an instance
	Maintenance         *bool
	Retired             *bool
	Sharded             *bool
	Busy                *bool // the engine has something to do or to wait for

	Sort   string // one of SortKeys; "": the order they were made
	Desc   bool
	Marker string // UUID of the last node of the page before
	Limit  int    // 0: no limit
}

// SortKeys are the fields nodes can be sorted by.
func SortKeys() []string {
	keys := []string{"uuid", "created_at", "updated_at"}
	for _, c := range nodeColumns {
		if c != "busy" && c != "kept" {
			keys = append(keys, c)
		}
	}
	return keys
}

// SortError says that a list can't be sorted by a field.
type SortError struct{ Key string }

func (e *SortError) Error() string { return fmt.Sprintf("can't sort by %q", e.Key) }

// where collects conditions and their arguments.
type where struct {
	conds []string
	args  []any
}

func (w *where) add(cond string, args ...any) {
	w.conds = append(w.conds, cond)
	w.args = append(w.args, args...)
}

func (w *where) equal(column string, v *string) {
	switch {
	case v == nil:
	case *v == "":
		w.add("COALESCE(" + column + ", '') = ''")
	default: // the second half lets an index be used that holds only rows which have something there
		w.add(column+" = ? AND "+column+" <> ''", *v)
	}
}

func (w *where) is(column, v string) {
	if v != "" {
		w.add(column+" = ?", v)
	}
}

func (w *where) flag(column string, v *bool) {
	if v != nil {
		w.add(column+" = ?", bit(*v))
	}
}

func in[T ~string](w *where, column string, vs []T) {
	if len(vs) > 0 {
		w.add(column + " IN (?" + strings.Repeat(", ?", len(vs)-1) + ")")
	}
	for _, v := range vs {
		w.args = append(w.args, string(v))
	}
}

// lowerASCII does the same as the databases' LOWER.
func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// containing is a pattern of LIKE for what has a text in it.
func containing(s string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(s) + "%"
}

func (w *where) filled(column string, v *bool) {
	if v == nil {
		return
	}
	if *v {
		w.add("COALESCE(" + column + ", '') <> ''")
	} else {
		w.add("COALESCE(" + column + ", '') = ''")
	}
}

func (w *where) sql() string {
	if len(w.conds) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(w.conds, " AND ")
}

// sortColumn is the expression that rows are sorted by for a column; "" is the order they were made.
func sortColumn(alias, column string) string {
	switch column {
	case "":
		return ""
	case "name", "instance_uuid": // the only ones that may be NULL
		return "COALESCE(" + alias + "." + column + ", '')"
	}
	return alias + "." + column
}

// page adds the order, the marker and the limit to w and returns the tail of the statement. The marker row's sort value
// is looked up in the statement itself, so that pages don't shift when rows before them come and go. table has alias
// for its name; sort is an expression of it.
func (w *where) page(table, alias, sort string, desc bool, marker string, limit int) string {
	dir, cmp := "ASC", ">"
	if desc {
		dir, cmp = "DESC", "<"
	}
	key := alias + ".seq"
	order := key + " " + dir
	if sort != "" {
		order = sort + " " + dir + ", " + order
	}
	if marker != "" {
		of := " FROM " + table + " WHERE " + alias + ".uuid = ?)"
		if sort == "" {
			w.add(key+" "+cmp+" (SELECT "+key+of, marker)
		} else {
			w.add("("+sort+", "+key+") "+cmp+" (SELECT "+sort+", "+key+of, marker)
		}
	}
	tail := w.sql() + " ORDER BY " + order
	if limit > 0 {
		tail += " LIMIT ?"
		w.args = append(w.args, limit)
	}
	return tail
}

// Nodes returns the nodes that q describes. Config drives are replaced by HiddenConfigDrive. A missing marker returns
// ErrNotFound, an impossible sort key a *SortError.
func (s *Store) Nodes(ctx context.Context, q Query) ([]*node.Node, error) {
	if q.Sort != "" && !slices.Contains(SortKeys(), q.Sort) {
		return nil, &SortError{q.Sort}
	}
	marker := strings.ToLower(q.Marker)
	if err := s.markerExists(ctx, "nodes", marker); err != nil {
		return nil, err
	}
	var w where
	for _, f := range []struct {
		column string
		v      *string
	}{
		{"n.name", q.Name}, {"n.instance_uuid", q.InstanceUUID}, {"n.instance_name", q.InstanceName},
		{"n.driver", q.Driver}, {"n.resource_class", q.ResourceClass}, {"n.conductor_group", q.ConductorGroup},
		{"n.conductor", q.Conductor}, {"n.owner", q.Owner}, {"n.lessee", q.Lessee}, {"n.shard", q.Shard},
		{"n.parent_node", q.ParentNode}, {"n.chassis_uuid", q.ChassisUUID}, {"n.fault", q.Fault},
	} {
		w.equal(f.column, f.v)
	}
	if q.Project != nil {
		w.add("(n.owner = ? OR n.lessee = ?)", *q.Project, *q.Project)
	}
	if q.DescriptionContains != nil {
		w.add(`n.description <> '' AND LOWER(n.description) LIKE ? ESCAPE '\'`,
			containing(lowerASCII(*q.DescriptionContains)))
	}
	if q.Provision != nil {
		w.add("n.provision_state = ?", string(*q.Provision))
	}
	in(&w, "n.provision_state", q.ProvisionIn)
	in(&w, "n.shard", q.Shards)
	w.filled("n.instance_uuid", q.Associated)
	w.filled("n.shard", q.Sharded)
	w.flag("n.maintenance", q.Maintenance)
	w.flag("n.retired", q.Retired)
	w.flag("n.busy", q.Busy)

	tail := w.page("nodes n", "n", sortColumn("n", q.Sort), q.Desc, marker, q.Limit)
	return s.listNodes(ctx, tail, w.args)
}

// markerExists refuses a marker that would silently return an empty page.
func (s *Store) markerExists(ctx context.Context, table, marker string) error {
	if marker == "" {
		return nil
	}
	var one int
	if err := s.r.QueryRowContext(ctx, "SELECT 1 FROM "+table+" WHERE uuid = ?", marker).Scan(&one); err != nil {
		return fmt.Errorf("marker %s: %w", marker, notFound(err))
	}
	return nil
}

// Kept returns the UUIDs of nodes without work under way whose agent is there all the same: kept for the next, or for a
// rescue.
func (s *Store) Kept(ctx context.Context) ([]string, error) {
	return list(ctx, s.r, "list nodes whose agent is kept", into(text),
		`SELECT uuid FROM nodes WHERE kept = 1 AND busy = 0 ORDER BY seq`)
}

// Owned returns the UUIDs of the nodes that a conductor owns, in the order they were made.
func (s *Store) Owned(ctx context.Context, conductor string) ([]string, error) {
	return list(ctx, s.r, "list nodes of a conductor", into(text),
		`SELECT uuid FROM nodes WHERE conductor = ? ORDER BY seq`, conductor)
}

// UUIDs returns the UUIDs of all nodes, or of those with work under way only, in the order they were made.
func (s *Store) UUIDs(ctx context.Context, busy bool) ([]string, error) {
	q := `SELECT uuid FROM nodes`
	if busy {
		q += ` WHERE busy = 1`
	}
	return list(ctx, s.r, "list nodes", into(text), q+` ORDER BY seq`)
}
