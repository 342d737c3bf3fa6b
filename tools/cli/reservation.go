package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (p *program) reservationCommand() *cobra.Command {
	return group(&cobra.Command{Use: "reservation", Short: "Machines that are promised to a project for a time"},
		p.reservationCreate(), p.reservationList(), p.reservationShow(), p.reservationExtend(), p.reservationDelete(),
		p.reservationCalendar())
}

var oneReservation = oneArg("the name or UUID of one reservation; `ingot reservation list` shows them")

func (p *program) completeReservation() completion {
	return p.completeNames(func(c *client.Client, ctx context.Context) ([]string, error) {
		all, err := c.Reservations(ctx)
		return mapped(all, calledReservation), err
	})
}

func calledReservation(r *rest.Reservation) string { return cmp.Or(string(r.Name), r.UUID) }

func (p *program) reservationCreate() *cobra.Command {
	var class, project, name, start, end, length string
	var traits commaList
	count, tearDown := 1, false
	return p.online(&cobra.Command{Use: "create", Short: "Reserve machines of a resource class for a time",
		Args: cobra.NoArgs,
		Long: `Promise so many machines of a resource class to a project, from a start to an end. Some time before the start they are out of any
other use, and booted into the agent. At the start the project becomes their lessee, and each gets an allocation: the first one has
the reservation's UUID. At the end that is taken back; with --tear-down the instances are removed as well.

A reservation that can't be kept is refused, with what is missing. Times are local unless they have an offset or a Z.`,
		Example: `  ingot reservation create --resource-class large --count 4 --start 2026-12-01T08:00 --for 72h --project web --tear-down
  ingot reservation create --resource-class gpu --traits CUSTOM_A100 --for 8h --name training`},
		[]option{
			opt("resource-class", &class, "resource class of the machines"),
			opt("count", &count, "number of machines"),
			opt("traits", &traits, "traits that each of them has"),
			opt("start", &start, "when it begins; now if it is left out"),
			opt("end", &end, "when it ends"),
			opt("for", &length, "or how long it lasts: 90m, 8h, 3d"),
			opt("project", &project, "ID of the project that the machines are for"),
			opt("tear-down", &tearDown, "remove the instances at the end"),
			opt("name", &name, "a name for it"),
		},
		func(ctx context.Context, c *client.Client, _ []string) error {
			if class == "" {
				return usage("--resource-class is missing: which machines are to be reserved")
			}
			from, err := moment("start", start, time.Now())
			if err != nil {
				return err
			}
			until, err := endOf(end, length, from)
			if err != nil {
				return err
			}
			body := map[string]any{"resource_class": class, "count": count, "end": until.UTC().Format(time.RFC3339),
				"tear_down": tearDown}
			if start != "" {
				body["start"] = from.UTC().Format(time.RFC3339)
			}
			if len(traits) > 0 {
				body["traits"] = traits
			}
			for k, v := range map[string]string{"project": project, "name": name} {
				if v != "" {
					body[k] = v
				}
			}
			r, err := c.Reserve(ctx, body)
			if err != nil {
				return err
			}
			return p.result(r, "reservation %s: %d machines of class %s from %s until %s", calledReservation(r), r.Count,
				r.ResourceClass, when(r.Start.Time), when(r.End.Time))
		})
}

// moment reads a time of a flag, local unless it says otherwise; empty is absent.
func moment(flag, text string, absent time.Time) (time.Time, error) {
	if text == "" {
		return absent, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return at, nil
		}
	}
	return time.Time{}, usage("--%s %q: give a time as 2026-12-01T08:00", flag, text)
}

// endOf reads the end: a time, or how long after from it is.
func endOf(end, length string, from time.Time) (time.Time, error) {
	switch {
	case (end == "") == (length == ""):
		return time.Time{}, usage("give either --end or --for")
	case end != "":
		return moment("end", end, from)
	}
	days, ok := strings.CutSuffix(length, "d")
	if ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 1 || n > 5*366 {
			return time.Time{}, usage("--for %q: give a time as 90m, 8h or 3d", length)
		}
		return from.AddDate(0, 0, n), nil
	}
	d, err := time.ParseDuration(length)
	if err != nil || d <= 0 {
		return time.Time{}, usage("--for %q: give a time as 90m, 8h or 3d", length)
	}
	return from.Add(d), nil
}

func (p *program) reservationList() *cobra.Command {
	return p.online(&cobra.Command{Use: "list", Short: "List the reservations"}, nil,
		func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Reservations(ctx)
			if err != nil {
				return err
			}
			head := []string{"RESERVATION", "STATE", "PROJECT", "MACHINES", "CLASS", "START", "END", "FAULT"}
			return list(p, all, head, func(r *rest.Reservation) []string {
				return []string{calledReservation(r), r.State, dash(string(r.Project)), strconv.Itoa(r.Count),
					r.ResourceClass, when(r.Start.Time), when(r.End.Time), dash(string(r.Fault))}
			})
		})
}

func (p *program) reservationShow() *cobra.Command {
	return p.online(&cobra.Command{Use: "show NAME", Short: "Show a reservation and its machines",
		Args: oneReservation, ValidArgsFunction: p.completeReservation()}, nil,
		func(ctx context.Context, c *client.Client, args []string) error {
			r, err := c.Reservation(ctx, args[0])
			if err != nil {
				return err
			}
			if p.values() {
				return p.print(r)
			}
			pairs := [][2]string{{"uuid", r.UUID}, {"name", dash(string(r.Name))}, {"state", r.State},
				{"project", dash(string(r.Project))}, {"resource class", r.ResourceClass},
				{"traits", dash(strings.Join(r.Traits, ", "))}, {"machines", strconv.Itoa(r.Count)},
				{"start", when(r.Start.Time)}, {"end", when(r.End.Time)},
				{"at the end", choose(r.TearDown, "the instances are removed", "the instances stay")}}
			pairs = append(pairs, filled([2]string{"fault", string(r.Fault)})...)
			if err := p.sheet(pairs); err != nil || len(r.Machines) == 0 {
				return err
			}
			fmt.Fprintln(p.stdout)
			return p.table([]string{"MACHINE", "GIVEN", "OUT OF OTHER USE FROM", "ALLOCATION"},
				mapped(r.Machines, func(m *rest.ReservedMachine) []string {
					return []string{machineOf(m), choose(m.Given, "yes", "no"), when(m.From.Time), m.AllocationUUID}
				}))
		})
}

func machineOf(m *rest.ReservedMachine) string {
	return cmp.Or(string(m.Name), string(m.NodeUUID), fmt.Sprintf("(machine %d)", m.Slot+1))
}

func (p *program) reservationExtend() *cobra.Command {
	var end, length string
	return p.online(&cobra.Command{Use: "extend NAME", Short: "Move the end of a reservation", Args: oneReservation,
		ValidArgsFunction: p.completeReservation(),
		Long: `Move the end of a reservation. It is refused, with the reason, if one of its machines is promised to another reservation then. An earlier
end is possible as well.`,
		Example: `  ingot reservation extend training --for 4h
  ingot reservation extend training --end 2026-12-05T18:00`},
		[]option{
			opt("end", &end, "the new end"),
			opt("for", &length, "or how much longer it lasts: 90m, 8h, 3d"),
		},
		func(ctx context.Context, c *client.Client, args []string) error {
			r, err := c.Reservation(ctx, args[0])
			if err != nil {
				return err
			}
			until, err := endOf(end, length, r.End.Time)
			if err != nil {
				return err
			}
			r, err = c.ExtendReservation(ctx, r.UUID, until)
			if err != nil {
				return err
			}
			return p.result(r, "reservation %s ends at %s", calledReservation(r), when(r.End.Time))
		})
}

func (p *program) reservationDelete() *cobra.Command {
	return p.deletion("reservation", &cobra.Command{
		Use: "delete NAME", Short: "Delete a reservation; one that has begun ends now", Args: oneReservation,
		ValidArgsFunction: p.completeReservation()}, (*client.Client).DeleteReservation)
}

func (p *program) reservationCalendar() *cobra.Command {
	days := 14
	return p.online(&cobra.Command{Use: "calendar", Short: "Show which machine is promised when", Args: cobra.NoArgs},
		[]option{opt("days", &days, "how many days from today, up to 366")},
		func(ctx context.Context, c *client.Client, _ []string) error {
			if days < 1 || days > 366 {
				return usage("--days %d: give a number from 1 to 366", days)
			}
			all, err := c.Reservations(ctx)
			if err != nil {
				return err
			}
			if p.values() {
				return p.print(all)
			}
			now := time.Now()
			head, rows := calendar(all, time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.Local), days)
			return p.table(head, rows)
		})
}

// calendarWidth is how many columns the days of a calendar have.
const calendarWidth = 56

// calendar draws reservations from a midnight on: a row for each machine of each reservation, with a mark for each part
// of the time in which the machine is prepared (-), or the project's (#).
func calendar(all []rest.Reservation, from time.Time, days int) (head []string, rows [][]string) {
	until := from.AddDate(0, 0, days)
	part := until.Sub(from) / calendarWidth
	scale := []byte(strings.Repeat(" ", calendarWidth))
	every := (days + 6) / 7 // as many days have room for their names
	for day := 0; day < days; day += every {
		at := int(from.AddDate(0, 0, day).Sub(from) / part)
		copy(scale[min(at, calendarWidth):], from.AddDate(0, 0, day).Format("Jan 2"))
	}
	for i := range all {
		r := &all[i]
		if !r.End.After(from) || !r.Start.Before(until) {
			continue
		}
		machines := r.Machines
		if len(machines) == 0 {
			machines = []rest.ReservedMachine{{From: r.Start}}
		}
		for k := range machines {
			m := &machines[k]
			bar := make([]byte, calendarWidth)
			for x := range bar {
				a := from.Add(time.Duration(x) * part)
				meets := func(begin, end time.Time) bool { return begin.Before(a.Add(part)) && a.Before(end) }
				switch {
				case meets(r.Start.Time, r.End.Time):
					bar[x] = '#'
				case meets(m.From.Time, r.Start.Time):
					bar[x] = '-'
				default:
					bar[x] = '.'
				}
			}
			rows = append(rows, []string{machineOf(m), calledReservation(r), string(bar)})
		}
	}
	return []string{"MACHINE", "RESERVATION", strings.TrimRight(string(scale), " ")}, rows
}
