package power

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
)

// plain is a driver that counts calls, full one with all further interfaces.
type plain struct {
	Driver // for Devices, which nothing here calls
	calls  *int
}

func (p plain) Power(context.Context) (State, error)          { *p.calls++; return On, nil }
func (p plain) SetPower(context.Context, Action) error        { *p.calls++; return nil }
func (p plain) SetBoot(context.Context, Boot) error           { *p.calls++; return nil }
func (p plain) Boot(context.Context) (Boot, error)            { *p.calls++; return Boot{}, nil }
func (p plain) SystemGUIDs(context.Context) ([]string, error) { *p.calls++; return nil, nil }
func (p plain) Key() string                                   { return "k" }
func (p plain) Close() error                                  { return nil }

type full struct{ plain }

func (f full) Rows() []string                                       { return []string{"row"} }
func (f full) SetPassword(context.Context, string) error            { *f.calls++; return nil }
func (f full) Vendor(context.Context) (string, error)               { *f.calls++; return "", nil }
func (f full) WatchConsole(context.Context, io.Writer) error        { *f.calls++; return nil }
func (f full) Console(context.Context, io.Reader, io.Writer) error  { *f.calls++; return nil }
func (f full) InsertMedia(context.Context, BootImage) (bool, error) { *f.calls++; return true, nil }
func (f full) EjectMedia(context.Context) error                     { *f.calls++; return nil }
func (f full) InjectNMI(context.Context) error                      { *f.calls++; return nil }
func (f full) ResetController(context.Context, bool) error          { *f.calls++; return nil }
func (f full) Raw(context.Context, byte, byte, []byte) error        { *f.calls++; return nil }

// TestCheckedAsksFirst: no call of a checked driver reaches its controller without a check, whichever call it is.
func TestCheckedAsksFirst(t *testing.T) {
	errNo := errors.New("no")
	calls, done := 0, 0
	may := errNo
	d := reflect.ValueOf(Checked(full{plain{calls: &calls}}, func() error { return may },
		func(call string, _ time.Duration, _ error) {
			if done++; call == "" {
				t.Error("a call without a name is counted")
			}
		}))
	tried := 0
	for i := range d.NumMethod() {
		m := d.Method(i)
		if m.Type().NumIn() == 0 || m.Type().In(0) != reflect.TypeFor[context.Context]() {
			continue
		}
		tried++
		name := d.Type().Method(i).Name
		args := []reflect.Value{reflect.ValueOf(t.Context())}
		for k := 1; k < m.Type().NumIn(); k++ {
			args = append(args, reflect.Zero(m.Type().In(k)))
		}
		for _, may = range []error{errNo, nil} {
			calls, done = 0, 0
			out := m.Call(args)
			err, _ := out[len(out)-1].Interface().(error)
			if want := map[error]int{errNo: 0, nil: 1}[may]; calls != want || !errors.Is(err, may) {
				t.Errorf("%s with check %v: %d calls, error %v", name, may, calls, err)
			} else if lasts := strings.HasSuffix(name, "Console"); !lasts && done != want {
				t.Errorf("%s with check %v: %d calls, %d are counted", name, may, calls, done)
			}
		}
	}
	if tried < 10 {
		t.Errorf("%d calls were tried", tried)
	}
}

// TestAs: a checked driver has the further interfaces of the driver below, and no others.
func TestAs(t *testing.T) {
	calls := 0
	ok := func() error { return nil }
	has := func(d Driver) []bool {
		_, rows := As[RowTeller](d)
		_, password := As[PasswordDriver](d)
		_, vendor := As[VendorTeller](d)
		_, console := As[ConsoleWatcher](d)
		_, media := As[MediaDriver](d)
		_, works := As[Console](d)
		_, commands := As[Commander](d)
		return []bool{rows, password, vendor, console, works, media, commands, RowsOf(d) != nil}
	}
	for _, d := range []Driver{plain{calls: &calls}, full{plain{calls: &calls}}} {
		if got, want := has(Checked(d, ok, nil)), has(d); !reflect.DeepEqual(got, want) {
			t.Errorf("%T checked has %v, want %v", d, got, want)
		}
	}
	// One that lacks an interface says so when it is called all the same.
	c, is := Checked(plain{calls: &calls}, ok, nil).(MediaDriver)
	if !is || KindOf(c.EjectMedia(t.Context())) != Unsupported {
		t.Error("a driver without virtual media ejects")
	}
}
