package redfish

import (
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/tasks"
)

// Behaviours of controllers in work that they do in the background.
const (
	// TasksVanish has no task and no monitor of work that waits for a start of the machine or is over.
	TasksVanish Behaviour = "tasks vanish"
	// MonitorOnce deletes the monitor of a task when it is read.
	MonitorOnce Behaviour = "a monitor can be read once"
	// JobQueue has Dell's queue of jobs beside the tasks. A task that waits for a start is Starting.
	JobQueue Behaviour = "job queue"
	// OddTimes has times in tasks that are none.
	OddTimes Behaviour = "odd times"
	// SilentTasks accepts work without a word about where it is reported on.
	SilentTasks Behaviour = "no word about tasks"
	// WorkFails fails all work in the background.
	WorkFails Behaviour = "work fails"
)

// wireTasks makes the tasks.
func (s *Service) wireTasks() {
	p := s.cfg.Personality
	opt := tasks.Options{Manager: s.managerPath(), Starts: s.bmc.Starts, Took: s.cfg.Took, Vanish: p.Has(TasksVanish),
		MonitorOnce: p.Has(MonitorOnce), OddTimes: p.Has(OddTimes), Silent: p.Has(SilentTasks),
		Jobs:    p.Vendor == "Dell" || p.Has(JobQueue),
		Payload: p.Vendor == "Ingot" || p.Manufacturer == "OpenBMC"}
	if opt.Jobs {
		opt.Waiting = "Starting"
	}
	if p.Has(WorkFails) {
		opt.Fail = "The work failed at https://files.example/secret/path."
	}
	s.tasks = tasks.New(opt)
}

// ModeIsJob makes a job of each boot mode that is sent, which waits for a start.
const ModeIsJob Behaviour = "a boot mode that is sent is a job"

const biosJob = "BIOSConfiguration"

// queued changes settings of the firmware, of which Dell's controllers make a job: there can be one.
func (s *Service) queued(change func() *odata.Problem) *odata.Problem {
	if s.dell == nil {
		return change()
	}
	if len(s.tasks.Unfinished(biosJob)) > 0 {
		return &odata.Problem{ID: "SYS011", Registry: "IDRAC.2.8."}
	}
	problem := change()
	if problem == nil {
		s.addBIOSJob()
	}
	return problem
}

func (s *Service) addBIOSJob() {
	s.tasks.Add(tasks.Work{Name: "Configure: BIOS.Setup.1-1", Type: biosJob, Stages: []tasks.Stage{{AtStart: true}}})
}

// Tasks is the work of the controller in the background.
func (s *Service) Tasks() *tasks.Service { return s.tasks }

// Restart restarts the controller: it forgets its sessions, and answers nothing for a while.
func (s *Service) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.sessions)
	s.downUntil = time.Now().Add(s.cfg.Down)
	s.restarts++
}

// Restarts counts the restarts of the controller.
func (s *Service) Restarts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restarts
}

// down reports whether the controller is restarting.
func (s *Service) down() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.downUntil)
}
