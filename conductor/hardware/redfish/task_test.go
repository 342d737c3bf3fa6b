package redfish

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/task"
	testkit "github.com/ingot-metal/ingot/test/kit"
	kit "github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/tasks"
)

const taskPath, monitorPath = "/redfish/v1/TaskService/Tasks/", "/redfish/v1/TaskService/TaskMonitors/"

func refOf(id string) task.Ref { return task.Ref{Monitor: monitorPath + id, Task: taskPath + id} }

// until polls a task until what it is waited for.
func until(ctx context.Context, d *Driver, ref task.Ref, ready func(task.State) bool) (task.State, error) {
	s, err := d.c.System(ctx, "")
	if err != nil {
		return task.State{}, err
	}
	for {
		st, err := task.Poll(ctx, d.c, s, ref)
		if err != nil || ready(st) {
			return st, err
		}
		if st.Gone || st.Over || ctx.Err() != nil {
			return st, fmt.Errorf("the task is %+v", st)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func over(st task.State) bool { return st.Over }

// follow follows a task to its end, which is not over before it was looked at.
func follow(ctx context.Context, d *Driver) error {
	b := ctx.Value(theBench{}).(*bench)
	seen, once := make(chan struct{}), sync.Once{}
	id := b.Service.Tasks().Add(tasks.Work{Name: "Update", Stages: []tasks.Stage{{
		Do: func(ctx context.Context) error {
			select {
			case <-seen:
			case <-ctx.Done():
			}
			return nil
		}}}})
	_, err := until(ctx, d, refOf(id), func(st task.State) bool {
		once.Do(func() { close(seen) })
		return over(st)
	})
	return err
}

// followFailure learns why a task failed that is gone since.
func followFailure(ctx context.Context, d *Driver) error {
	b := ctx.Value(theBench{}).(*bench)
	id := b.Service.Tasks().Add(tasks.Work{Name: "Update", Stages: []tasks.Stage{{
		Do: func(context.Context) error { return errors.New("the file is broken") }}}})
	st, err := until(ctx, d, refOf(id), over)
	if err == nil && (!st.Failed || !strings.Contains(st.Message, "broken")) {
		err = fmt.Errorf("the task is %+v", st)
	}
	return err
}

// Tasks of every personality are followed while they run, wait for a start of the machine and are over, and the reason
// of a failure is repeated without paths of addresses. Of what is gone that is said, and no more.
func TestTasksOfEveryPersonality(t *testing.T) {
	for _, name := range service.Personalities() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, name), func(c *service.Config) { c.Took = 20 * time.Millisecond })
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			d := b.open(b.pool, nil).(*Driver)
			lab := b.Service.Tasks()
			work := tasks.Work{Name: "Update", Type: "FirmwareUpdate", Stages: []tasks.Stage{{}, {AtStart: true}}}
			ref := refOf(lab.Add(work))
			if _, err := until(ctx, d, ref, func(st task.State) bool { return st.Waits }); err != nil {
				t.Fatal(err)
			}
			if err := b.Machine.Start(); err != nil {
				t.Fatal(err)
			}
			if st, err := until(ctx, d, ref, over); err != nil || st.Failed || st.Percent != 100 {
				t.Errorf("in the end: %+v, %v", st, err)
			}
			work.Stages = []tasks.Stage{{Do: func(context.Context) error {
				return errors.New("can't read https://files.example/secret/path?token=1\x1b[2J")
			}}}
			st, err := until(ctx, d, refOf(lab.Add(work)), over)
			if err != nil || !st.Failed || !strings.Contains(st.Message, "can't read") ||
				strings.ContainsAny(st.Message, "\x1b") || strings.Contains(st.Message, "secret") {
				t.Errorf("a failure: %+v, %v", st, err)
			}
			s, err := d.c.System(ctx, "")
			if err != nil {
				t.Fatal(err)
			}
			if st, err := task.Poll(ctx, d.c, s, refOf("none")); err != nil || !st.Gone {
				t.Errorf("no task: %+v, %v", st, err)
			}
		})
	}
}

// A controller that restarts does not answer for a while; then the task goes on to be followed.
func TestTaskOfARestartedController(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Personality(t, "generic"), func(c *service.Config) { c.Down = 3 * time.Second })
	d := b.open(b.pool, nil).(*Driver)
	ref := refOf(b.Service.Tasks().Add(tasks.Work{Name: "Update"}))
	if _, err := until(t.Context(), d, ref, over); err != nil {
		t.Fatal(err)
	}
	b.Service.Restart()
	if _, err := until(t.Context(), d, ref, over); power.KindOf(d.c.Error("poll", err)) != power.Unreachable {
		t.Errorf("while it restarts: %v", err)
	}
	testkit.Eventually(t, time.Minute, "the task is followed again", func() bool {
		_, err := until(t.Context(), d, ref, over)
		return err == nil
	})
	if n := b.Service.Sessions(); n != 1 {
		t.Errorf("afterwards %d sessions", n)
	}
}

// What answers of services mean.
func TestTaskOfAnAnswer(t *testing.T) {
	const body = `{"@odata.id":"/t/1","@odata.type":"#Task.v1_7_4.Task"}`
	for _, tt := range []struct {
		reply controller.Reply
		want  task.Ref
		later bool
	}{
		{controller.Reply{Status: http.StatusNoContent}, task.Ref{}, false},
		{controller.Reply{Status: http.StatusOK, Body: []byte(`{"error":{}}`)}, task.Ref{}, false},
		{controller.Reply{Status: http.StatusAccepted}, task.Ref{}, true},
		{controller.Reply{Status: http.StatusAccepted, Location: "/m/1", Body: []byte(body)},
			task.Ref{Monitor: "/m/1", Task: "/t/1"}, true},
		{controller.Reply{Status: http.StatusOK, Body: []byte(body)}, task.Ref{Task: "/t/1"}, true},
	} {
		if got, later := task.Of(tt.reply); got != tt.want || later != tt.later {
			t.Errorf("Of(%+v) = %+v, %v", tt.reply, got, later)
		}
	}
}

// A request whose answer was not read is known by its task: one that is new, and not of another request.
func TestTaskOfALostAnswer(t *testing.T) {
	const target = "/redfish/v1/UpdateService/Actions/UpdateService.SimpleUpdate"
	for _, name := range []string{"generic", "dell-idrac9", "hpe-ilo5"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, name))
			d := b.open(b.pool, nil).(*Driver)
			s, err := d.c.System(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			lab := b.Service.Tasks()
			lab.Add(tasks.Work{Name: "An older one", Target: target})
			known, err := task.Known(t.Context(), d.c, s)
			if err != nil || len(known) == 0 {
				t.Fatal(known, err)
			}
			if name == "generic" {
				lab.Add(tasks.Work{Name: "Another's", Target: "/redfish/v1/Systems/1/Storage/1/Volumes"})
			}
			if ref, ok, err := task.Begun(t.Context(), d.c, s, known, target); ok || err != nil {
				t.Errorf("before the request: %+v, %v", ref, err)
			}
			id := lab.Add(tasks.Work{Name: "Update", Target: target, Stages: []tasks.Stage{{AtStart: true}}})
			ref, ok, err := task.Begun(t.Context(), d.c, s, known, target)
			if !ok || err != nil || !strings.HasSuffix(ref.Task, "/"+id) {
				t.Fatalf("after it: %+v, %v, %v", ref, ok, err)
			}
			if st, err := task.Poll(t.Context(), d.c, s, ref); err != nil || !st.Waits {
				t.Errorf("it is %+v, %v", st, err)
			}
		})
	}
}

// A hostile controller makes neither long nor strange messages, nor more requests than are wanted.
func TestHostileTasks(t *testing.T) {
	for _, behaviour := range hostile {
		t.Run(string(behaviour), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, "generic", behaviour),
				func(c *service.Config) { c.Elsewhere = "127.0.0.1:1" })
			d := b.open(b.pool, nil).(*Driver)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			long := errors.New(strings.Repeat("\x1b[2Jx", 100_000) + kit.Password)
			id := b.Service.Tasks().Add(tasks.Work{Name: "Update",
				Stages: []tasks.Stage{{Do: func(context.Context) error { return long }}}})
			s, err := d.c.System(ctx, "")
			if err != nil {
				return
			}
			for !slices.Equal(b.Service.Tasks().Unfinished(), nil) {
				time.Sleep(time.Millisecond)
			}
			known, err := task.Known(ctx, d.c, s)
			if len(known) > 200 {
				t.Errorf("%d tasks are remembered, %v", len(known), err)
			}
			st, err := task.Poll(ctx, d.c, s, refOf(id))
			if said := st.Message + errorText(err); strings.ContainsAny(said, "\x1b\x07") || len(said) > 2000 ||
				strings.Contains(said, kit.Password) {
				t.Errorf("it says %.300q", said)
			}
			if n := b.Service.Requests(); n > 50 {
				t.Errorf("%d requests", n)
			}
		})
	}
}
