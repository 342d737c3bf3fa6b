// Package task follows what a controller does in the background: by the monitor of a task, the task itself, or a job of
// Dell's queue.
//
// Nothing here waits. A step submits a request, keeps the Ref of the answer in its memory, and polls it at each call. A
// controller may forget a task, when it restarts or when the work is over: then the task is Gone, and only what the
// work was to change shows whether it was done. Times of tasks are not read: some controllers write none that exist.
package task

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
)

// Ref is where a controller reports on work: the monitor of a task, and the task, which may be a job of Dell's. Zero:
// it reports nowhere.
type Ref struct {
	Monitor string `json:",omitempty"`
	Task    string `json:",omitempty"`
}

// Of reads where the work is reported on that a request began. later is false when the service said that nothing is
// left to do.
func Of(r controller.Reply) (ref Ref, later bool) {
	var body struct {
		ID   string `json:"@odata.id"`
		Type string `json:"@odata.type"`
	}
	_ = json.Unmarshal(r.Body, &body) // a text, or none
	isTask := strings.HasPrefix(body.Type, "#Task.")
	if r.Status != http.StatusAccepted && !isTask {
		return Ref{}, false
	}
	ref = Ref{Monitor: r.Location}
	if isTask {
		ref.Task = body.ID
	}
	return ref, true
}

// State is how far work is.
type State struct {
	// Over means that nothing more is done; Failed that it did not succeed, as Message says.
	Over, Failed bool
	// Waits means that it has not begun: it may wait for a restart of the machine.
	Waits bool
	// Gone means that the controller knows nothing of it (any more).
	Gone    bool
	Percent int
	// Message is the controller's, cleaned and bounded; "" is none.
	Message string
}

// states of tasks and jobs that are not under way. Others are.
var states = map[string]State{
	"New": {Waits: true}, "Pending": {Waits: true}, "Starting": {Waits: true}, "Suspended": {Waits: true},
	"Completed": {Over: true}, "Exception": {Over: true, Failed: true}, "Killed": {Over: true, Failed: true},
	"Cancelled": {Over: true, Failed: true}, "Interrupted": {Over: true, Failed: true},
	// of Dell's jobs
	"Scheduled": {Waits: true}, "Scheduling": {Waits: true}, "ReadyForExecution": {Waits: true},
	"PendingActivation": {Waits: true}, "RebootPending": {Waits: true}, "Failed": {Over: true, Failed: true},
	"CompletedWithErrors": {Over: true, Failed: true}, "RebootFailed": {Over: true, Failed: true},
	"RebootCompleted": {Over: true},
}

// Poll reads how far work is. By the standard its monitor says so.
func Poll(ctx context.Context, c *controller.Controller, s *controller.System, ref Ref) (State, error) {
	path := ref.Monitor
	if path == "" || ref.Task != "" && s.Quirks.Has(quirk.PollTask) {
		path = ref.Task
	}
	if path == "" {
		return State{Gone: true}, nil
	}
	st, err := read(ctx, c, path)
	if !missing(err) {
		return st, err
	}
	queue, err := Jobs(ctx, c, s)
	if err != nil || queue == "" || strings.HasPrefix(path, queue+"/") {
		return State{Gone: true}, err
	}
	if st, err = read(ctx, c, queue+path[strings.LastIndex(path, "/"):]); missing(err) {
		return State{Gone: true}, nil
	}
	return st, err
}

func missing(err error) bool {
	return controller.Status(err) == http.StatusNotFound || controller.Status(err) == http.StatusGone
}

// mostMessages of a task are repeated: the last ones.
const mostMessages = 3

func read(ctx context.Context, c *controller.Controller, path string) (State, error) {
	r, err := c.Submit(ctx, http.MethodGet, path, nil)
	if err != nil {
		return State{}, err
	}
	var doc struct {
		TaskState, JobState, TaskStatus, Message string
		PercentComplete                          any
		Messages                                 json.RawMessage
	}
	known := json.Unmarshal(r.Body, &doc) == nil && doc.TaskState+doc.JobState != ""
	if !known { // the result of the work, or nothing
		return State{Over: r.Status != http.StatusAccepted}, nil
	}
	st := states[doc.TaskState+doc.JobState]
	if doc.TaskState == "Completed" && doc.TaskStatus == string(schemas.CriticalHealth) {
		st.Failed = true
	}
	if n, is := doc.PercentComplete.(float64); is {
		st.Percent = int(min(max(n, 0), 100))
	}
	var messages []struct {
		Message   string
		MessageID string `json:"MessageId"`
	}
	_ = json.Unmarshal(doc.Messages, &messages) // of another form: they are not repeated
	texts := []string{c.Clean(doc.Message)}
	for _, m := range messages[max(len(messages)-mostMessages, 0):] {
		text := c.Clean(m.Message)
		if text == "" {
			text = c.Clean(m.MessageID)
		}
		texts = append(texts, text)
	}
	st.Message = strings.TrimSpace(strings.Join(texts, " "))
	return st, nil
}

// Jobs is the path of Dell's queue of jobs; "" where there is none, or the controller is not of a row that has it.
func Jobs(ctx context.Context, c *controller.Controller, s *controller.System) (string, error) {
	if !s.Quirks.Has(quirk.AskJobQueue) || len(s.Links.ManagedBy) == 0 {
		return "", nil
	}
	var m struct {
		Links struct {
			Oem struct{ Dell struct{ Jobs schemas.Link } }
		}
	}
	_, err := c.Try(ctx, string(s.Links.ManagedBy[0]), &m)
	return strings.TrimSuffix(string(m.Links.Oem.Dell.Jobs), "/"), err
}

// mostKnown bounds the tasks that a step remembers.
const mostKnown = 200

// Known lists the paths of the tasks and jobs that a controller shows: to be remembered before a request, for Begun.
func Known(ctx context.Context, c *controller.Controller, s *controller.System) ([]string, error) {
	var root struct{ Tasks schemas.Link }
	if _, err := c.Try(ctx, "/redfish/v1/", &root); err != nil {
		return nil, err
	}
	var service struct{ Tasks schemas.Link }
	if _, err := c.Try(ctx, string(root.Tasks), &service); err != nil {
		return nil, err
	}
	queue, err := Jobs(ctx, c, s)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, collection := range []string{string(service.Tasks), queue} {
		all, err := c.Members(ctx, collection)
		if err != nil && !controller.Declined(err) {
			return nil, err
		}
		for _, m := range all {
			paths = append(paths, m.Path)
		}
	}
	return paths[max(len(paths)-mostKnown, 0):], nil
}

// Begun finds the task of a request to a target that was sent, perhaps, by a call of a step that did not live to
// remember it: one that was not known before, and of which the controller does not say that another request began it.
func Begun(ctx context.Context, c *controller.Controller, s *controller.System, known []string,
	target string) (Ref, bool, error) {
	now, err := Known(ctx, c, s)
	if err != nil {
		return Ref{}, false, err
	}
	for _, path := range slices.Backward(now) {
		if slices.Contains(known, path) {
			continue
		}
		var t struct {
			JobType string
			Payload struct {
				Target string `json:"TargetUri"`
			}
		}
		if ok, err := c.Try(ctx, path, &t); err != nil {
			return Ref{}, false, err
		} else if ok && (t.Payload.Target == "" || t.Payload.Target == target) {
			return Ref{Task: path}, true, nil
		}
	}
	return Ref{}, false, nil
}
