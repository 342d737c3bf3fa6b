package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/compat/bench"
)

func TestReservations(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}
	for _, name := range []string{"n1", "n2"} {
		if err := c.Store.CreateNode(t.Context(), &node.Node{Name: name, Driver: "ipmi", ResourceClass: "large",
			Provision: node.Available, Power: "power off"}); err != nil {
			t.Fatal(err)
		}
	}
	for args, want := range map[string]string{
		"reservation create --for 1h":                                         "--resource-class is missing",
		"reservation create --resource-class large":                           "either --end or --for",
		"reservation create --resource-class large --for 1h --end 2100-01-01": "either --end or --for",
		"reservation create --resource-class large --for soon":                "90m, 8h or 3d",
		"reservation create --resource-class large --for -1h":                 "90m, 8h or 3d",
		"reservation create --resource-class large --for 99999d":              "90m, 8h or 3d",
		"reservation create --resource-class large --start 8:00 --for 1h":     "--start",
		"reservation create --resource-class large --count 3 --for 1h":        "1 of 3 machines",
		"reservation create --resource-class large --count 0 --for 1h":        "count is 0",
		"reservation show":                  "wants the name or UUID of one reservation",
		"reservation show none":             "could not be found",
		"reservation extend none --for 1h":  "could not be found",
		"reservation delete none":           "could not be found",
		"reservation calendar --days 0":     "from 1 to 366",
		"reservation calendar --days 1 now": "",
	} {
		u.fails(words(args), want)
	}
	out := u.ok(words("reservation create --resource-class large --count 2 --for 3d --name web --project p --tear-down")...)
	if !strings.Contains(out, "reservation web: 2 machines of class large from ") {
		t.Errorf("create says %q", out)
	}
	if out := u.ok("reservation", "list"); !strings.Contains(out, "web") || !strings.Contains(out, "planned") {
		t.Errorf("list says %q", out)
	}
	if out := u.ok("reservation", "show", "web"); !strings.Contains(out, "the instances are removed") ||
		!strings.Contains(out, "n1") || !strings.Contains(out, "n2") {
		t.Errorf("show says %q", out)
	}
	stored := func() *node.Reservation {
		r, err := c.Store.Reservations().Get(t.Context(), "web")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	before := stored().End
	if out := u.ok(words("reservation extend web --for 2h")...); !strings.Contains(out, "reservation web ends at ") {
		t.Errorf("extend says %q", out)
	}
	if r := stored(); !r.End.Equal(before.Add(2*time.Hour)) || !r.TearDown {
		t.Errorf("extended: %+v, before it ended at %v", r, before)
	}
	if out := u.ok("reservation", "calendar"); !strings.Contains(out, "####") || strings.Count(out, "\n") != 3 {
		t.Errorf("calendar says %q", out)
	}
	u.ok("reservation", "delete", "web")
	if out := u.ok("reservation", "list"); !strings.Contains(out, "ending") {
		t.Errorf("one that has begun, after delete: %q", out)
	}
	start := time.Now().AddDate(0, 0, 9).Format("2006-01-02T15:04")
	u.ok(words("reservation create --resource-class large --start " + start + " --for 8h --name later")...)
	u.ok("reservation", "delete", "later")
	u.fails(words("reservation show later"), "could not be found")
}

func TestCalendar(t *testing.T) {
	from := time.Date(2026, 12, 1, 0, 0, 0, 0, time.Local)
	day := func(d float64) rest.NullTime {
		return rest.NullTime{Time: from.Add(time.Duration(d * float64(24*time.Hour)))}
	}
	all := []rest.Reservation{
		{UUID: "u1", Name: "web", Start: day(1), End: day(3),
			Machines: []rest.ReservedMachine{{Name: "n1", From: day(0.5)}, {Slot: 1, From: day(1)}}},
		{UUID: "u2", Start: day(-4), End: day(0.5)},
		{UUID: "past", Start: day(-4), End: day(0)},
		{UUID: "late", Start: day(7), End: day(9)},
	}
	head, rows := calendar(all, from, 7)
	got := strings.Join(head, "|") + "\n"
	for _, r := range rows {
		got += strings.Join(r, "|") + "\n"
	}
	want := `MACHINE|RESERVATION|Dec 1   Dec 2   Dec 3   Dec 4   Dec 5   Dec 6   Dec 7
n1|web|....----################................................
(machine 2)|web|........################................................
(machine 1)|u2|####....................................................
`
	if got != want {
		t.Errorf("calendar\n%s\nwant\n%s", got, want)
	}
}
