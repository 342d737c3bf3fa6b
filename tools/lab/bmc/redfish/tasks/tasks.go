// Package tasks has the work of a virtual controller in the background: a TaskService with tasks and their monitors,
// and Dell's queue of jobs, which shows the same work.
//
// Work has stages, each of which takes a while, may wait for the next start of the machine, and ends with an act of the
// part of the controller that it is of: firmware, volumes, BIOS settings. It goes on by itself until Close.
package tasks

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
)

type object = odata.Object

// Options are how a controller treats work.
type Options struct {
	// Manager is the path of the manager, which leads to Dell's queue.
	Manager string
	// Starts counts the starts of the machine.
	Starts func() int64
	// Took is how long a stage takes that does not say so itself.
	Took time.Duration
	// Vanish has neither task nor monitor of work any more that waits for a start or is over.
	Vanish bool
	// MonitorOnce deletes the monitor of a task when it is read.
	MonitorOnce bool
	// OddTimes has times that are none.
	OddTimes bool
	// Silent accepts work without a word about where it is reported on.
	Silent bool
	// Fail fails all work with this message; "" does not.
	Fail string
	// Jobs has a queue of jobs, which shows work that has no task any more, too.
	Jobs bool
	// Waiting is the state of a task that waits for a start; "" is Pending.
	Waiting string
	// Payload shows in a task the request that asked for it.
	Payload bool
}

// Stage is a part of work.
type Stage struct {
	// AtStart waits for the next start of the machine.
	AtStart bool
	// Took is how long it takes; 0 is Options.Took.
	Took time.Duration
	// Do is called in the end. Its error is the message of the task that fails by it. nil does nothing.
	Do func(context.Context) error
	// Then is as Do, and returns stages that follow.
	Then func(context.Context) ([]Stage, error)
}

// Work is to be done in the background.
type Work struct {
	Name string
	// Type is that of Dell's job: FirmwareUpdate, RAIDConfiguration, BIOSConfiguration.
	Type string
	// Target and Body are the request that asked for it.
	Target string
	Body   string
	Stages []Stage
}

// States of a task.
const (
	running   = "Running"
	completed = "Completed"
	exception = "Exception"
)

// task is work under way or over. Guarded by Service.mu.
type task struct {
	Work
	id         string
	state      string
	stage      int
	message    string
	begun, end time.Time
	read       bool // its monitor was
	cleared    bool
}

func (t *task) over() bool { return t.state == completed || t.state == exception }

// Service has the tasks of a controller. Safe for concurrent use.
type Service struct {
	opt    Options
	ctx    context.Context
	cancel context.CancelFunc
	works  sync.WaitGroup

	mu   sync.Mutex
	all  []*task
	made int
}

// New makes a service without tasks.
func New(opt Options) *Service {
	opt.Waiting = cmp.Or(opt.Waiting, "Pending")
	s := &Service{opt: opt}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Close ends all work where it is.
func (s *Service) Close() {
	s.cancel()
	s.works.Wait()
}

// Most tasks that are kept: the oldest that are over are forgotten.
const most = 100

// Add begins work and returns its ID.
func (s *Service) Add(w Work) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	t := &task{Work: w, id: fmt.Sprint(s.made), begun: time.Now()}
	if s.opt.Jobs {
		t.id = fmt.Sprintf("JID_%012d", s.made)
	}
	if i := slices.IndexFunc(s.all, (*task).over); i >= 0 && len(s.all) >= most {
		s.all = slices.Delete(s.all, i, i+1)
	}
	s.all = append(s.all, t)
	starts := s.enterLocked(t)
	s.works.Go(func() { s.run(t, starts) })
	return t.id
}

// enterLocked is called at the beginning of a stage, and returns how often the machine was started until then.
func (s *Service) enterLocked(t *task) int64 {
	t.state = running
	if t.stage < len(t.Stages) && t.Stages[t.stage].AtStart {
		t.state = s.opt.Waiting
	}
	return s.opt.Starts()
}

func (s *Service) run(t *task, starts int64) {
	for i := 0; ; i++ {
		s.mu.Lock()
		if i >= len(t.Stages) {
			t.state, t.message, t.end = completed, "The work has completed.", time.Now()
			s.mu.Unlock()
			return
		}
		st := t.Stages[i]
		s.mu.Unlock()
		if st.AtStart {
			for s.opt.Starts() == starts {
				if !s.sleep(5 * time.Millisecond) {
					return
				}
			}
			s.mu.Lock()
			cleared := t.cleared
			t.state = running
			s.mu.Unlock()
			if cleared {
				return
			}
		}
		if !s.sleep(cmp.Or(st.Took, s.opt.Took)) {
			return
		}
		var err error
		var more []Stage
		switch {
		case s.opt.Fail != "":
			err = fmt.Errorf("%s", s.opt.Fail) // as it is told to
		case st.Do != nil:
			err = st.Do(s.ctx)
		case st.Then != nil:
			more, err = st.Then(s.ctx)
		}
		s.mu.Lock()
		switch {
		case s.ctx.Err() != nil:
			s.mu.Unlock()
			return
		case err != nil:
			t.state, t.message, t.end = exception, err.Error(), time.Now()
			s.mu.Unlock()
			return
		}
		t.stage, t.Stages = i+1, append(t.Stages, more...)
		starts = s.enterLocked(t)
		s.mu.Unlock()
	}
}

func (s *Service) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// Made counts all work so far.
func (s *Service) Made() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made
}

// Unfinished are the IDs of work that is not over; those of a type if one is given.
func (s *Service) Unfinished(types ...string) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.all {
		if !t.over() && (len(types) == 0 || slices.Contains(types, t.Type)) {
			ids = append(ids, t.id)
		}
	}
	return ids
}

// Clear deletes work that waits for a start or is over, as Dell's DeleteJobQueue does.
func (s *Service) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(t *task) bool {
		t.cleared = !t.over() && t.state != running
		return t.cleared || t.over()
	})
}

// Paths of the service.
const (
	servicePath = odata.Root + "/TaskService"
	tasksPath   = servicePath + "/Tasks"
	monitors    = servicePath + "/TaskMonitors/"
)

func (s *Service) jobsPath() string { return s.opt.Manager + "/Oem/Dell/Jobs" }

// Accepted answers a request with 202 and where the work is reported on.
func (s *Service) Accepted(w http.ResponseWriter, id string) {
	s.mu.Lock()
	t := s.findLocked(id)
	var body object
	if t != nil && !s.opt.Silent {
		body = s.resourceLocked(t)
		w.Header().Set("Location", monitors+id)
	}
	s.mu.Unlock()
	if body == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	odata.Write(w, http.StatusAccepted, body)
}

// Monitor answers the GET of a task's monitor, and reports whether the path is of one: 202 until the work is over.
func (s *Service) Monitor(w http.ResponseWriter, path string) bool {
	id, is := strings.CutPrefix(path, monitors)
	if !is {
		return false
	}
	s.mu.Lock()
	t := s.findLocked(id)
	if t == nil || s.hiddenLocked(t) || t.read && s.opt.MonitorOnce {
		s.mu.Unlock()
		odata.Fault("ResourceMissingAtURI", path).Write(w)
		return true
	}
	t.read = true
	body, status := s.resourceLocked(t), http.StatusAccepted
	if t.over() {
		status = http.StatusOK
	}
	s.mu.Unlock()
	odata.Write(w, status, body)
	return true
}

func (s *Service) findLocked(id string) *task {
	if i := slices.IndexFunc(s.all, func(t *task) bool { return t.id == id }); i >= 0 {
		return s.all[i]
	}
	return nil
}

// hiddenLocked reports whether a task is not shown any more.
func (s *Service) hiddenLocked(t *task) bool { return s.opt.Vanish && t.state != running }

// Extend adds links to tasks and jobs to a resource of the service.
func (s *Service) Extend(path string, o object) {
	switch {
	case path == odata.Root:
		o["Tasks"] = odata.Link(servicePath)
	case path == s.opt.Manager && s.opt.Jobs:
		if links, is := o["Links"].(object); is {
			dell := object{"@odata.type": "#DellOem.v1_3_0.DellOemLinks", "Jobs": odata.Link(s.jobsPath())}
			links["Oem"] = object{"Dell": dell}
		}
	}
}

// Resource returns a task, a job, or a collection of them; nil if there is none at the path.
func (s *Service) Resource(path string) object {
	s.mu.Lock()
	defer s.mu.Unlock()
	var shown, all []string
	for _, t := range s.all {
		all = append(all, t.id)
		if !s.hiddenLocked(t) {
			shown = append(shown, t.id)
		}
	}
	switch path {
	case servicePath:
		return object{"@odata.id": path, "@odata.type": "#TaskService.v1_2_1.TaskService", "Id": "TaskService",
			"Name": "Task Service", "ServiceEnabled": true, "Tasks": odata.Link(tasksPath),
			"Status": object{"State": "Enabled", "Health": "OK"}}
	case tasksPath:
		return odata.Collection(path, "TaskCollection", "Tasks", shown...)
	case s.jobsPath():
		if !s.opt.Jobs {
			return nil
		}
		return odata.Collection(path, "DellJobCollection", "JobQueue", all...)
	}
	if id, is := strings.CutPrefix(path, tasksPath+"/"); is {
		if t := s.findLocked(id); t != nil && !s.hiddenLocked(t) {
			return s.resourceLocked(t)
		}
	}
	if id, is := strings.CutPrefix(path, s.jobsPath()+"/"); is && s.opt.Jobs {
		if t := s.findLocked(id); t != nil {
			return s.jobLocked(t, path)
		}
	}
	return nil
}

// timeFormat is that of the standard.
const timeFormat = "2006-01-02T15:04:05Z07:00"

// percentLocked is of the stages that are done.
func (t *task) percentLocked() int {
	if t.over() || len(t.Stages) == 0 {
		return 100
	}
	return 100 * t.stage / len(t.Stages)
}

// resourceLocked is a task as the standard has it.
func (s *Service) resourceLocked(t *task) object {
	health := map[bool]string{false: "OK", true: "Critical"}[t.state == exception]
	o := object{"@odata.id": tasksPath + "/" + t.id, "@odata.type": "#Task.v1_7_4.Task", "Id": t.id, "Name": t.Name,
		"TaskState": t.state, "TaskStatus": health, "StartTime": t.begun.UTC().Format(timeFormat),
		"Messages": s.messages(t, health), "PercentComplete": t.percentLocked()}
	if !t.over() {
		o["TaskMonitor"] = monitors + t.id
	}
	if t.Target != "" && s.opt.Payload {
		o["Payload"] = object{"HttpOperation": "POST", "TargetUri": t.Target, "JsonBody": t.Body,
			"HttpHeaders": []string{"Content-Type: application/json"}}
	}
	if t.over() {
		o["EndTime"] = t.end.UTC().Format(timeFormat)
	}
	if s.opt.OddTimes {
		o["StartTime"], o["EndTime"] = t.begun.UTC().Format("2006-01-02T15:04:05-0600"), "0000-00-00T00:00:00-06:00"
	}
	return o
}

func (s *Service) messages(t *task, health string) []object {
	if t.message == "" {
		return []object{}
	}
	id := map[bool]string{false: "TaskEvent.1.0.TaskCompletedOK", true: "TaskEvent.1.0.TaskAborted"}[t.state == exception]
	return []object{{"@odata.type": odata.MessageType, "Message": t.message, "MessageId": id,
		"MessageArgs": []string{}, "MessageSeverity": health, "Resolution": "None."}}
}

// jobLocked is the same as Dell's queue shows it.
func (s *Service) jobLocked(t *task, path string) object {
	state, end := t.state, "TIME_NA"
	switch {
	case t.state == exception:
		state = "Failed"
	case !t.over() && t.state != running:
		state = "Scheduled"
	}
	if t.over() && !s.opt.OddTimes {
		end = t.end.UTC().Format("2006-01-02T15:04:05")
	}
	return object{"@odata.id": path, "@odata.type": "#DellJob.v1_4_0.DellJob", "Id": t.id, "Name": t.Name,
		"JobType": t.Type, "JobState": state, "Message": cmp.Or(t.message, "New"), "MessageId": "PR19",
		"StartTime": "TIME_NOW", "EndTime": end, "PercentComplete": t.percentLocked()}
}
