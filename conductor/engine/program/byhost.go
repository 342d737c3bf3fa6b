package program

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"slices"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// ByHost is the deploy interface with which a host of the site's writes the image, onto the disk that the agent lends
// it, in place of the agent.
const ByHost = "iscsi"

// Writer is a host that writes disks.
type Writer struct {
	Address   string // from which it connects to machines
	Initiator string // its iSCSI name
}

// byHost adds the step that lends the disk to a deployment of interface ByHost, for one of the site's writers. It runs
// in the place of write_image, and is refused where that would be.
func (m Planner) byHost(n *node.Node, asked []node.JobStep) ([]node.JobStep, error) {
	if m.Drivers.Interface(n, "deploy") != ByHost {
		return asked, nil
	}
	switch {
	case !m.AllowExport || len(m.Writers) == 0:
		return nil, node.Invalidf(
			"deploy interface %s has another host write the disk, which this conductor does not allow: have its export.allow and export.writers set", ByHost)
	case asks(asked, stepExport) || asks(asked, "write_image"):
		return nil, node.Invalidf(
			"deploy interface %s has steps of its own in place of write_image and %s: leave both out, or use deploy interface direct",
			ByHost, stepExport)
	case n.InstanceInfo["image_type"] == "partition":
		return nil, node.Invalidf("deploy interface %s writes whole-disk images: use one, or deploy interface direct", ByHost)
	}
	if err := m.Site.CheckImage(n); err != nil {
		return nil, err
	}
	w := m.Writers[mathrand.IntN(len(m.Writers))]
	args, err := json.Marshal(map[string]any{"initiator_name": w.Initiator, "initiator_address": w.Address,
		"chap_user": "ingot", "chap_password": rand.Text(),
		"quiet": 1}) // a writer logs out once, at its end
	if err != nil {
		return nil, fmt.Errorf("make arguments of step %s: %w", stepExport, err)
	}
	r, _ := m.AgentSteps.Find("deploy", "write_image")
	return append(slices.Clone(asked), node.JobStep{Interface: "deploy", Name: stepExport, Args: args,
		Priority: r.Priority[steparg.Deploy]}), nil
}

// writtenByHost reports whether a step lends the disk to a writer.
func (m Planner) writtenByHost(n *node.Node, s node.JobStep) bool {
	return s.Interface == "deploy" && s.Name == stepExport && m.Drivers.Interface(n, "deploy") == ByHost
}

// oncePassword makes the password in a step's arguments one for a single plan. A session of an initiator with an
// earlier run of the step, whose machine was started anew, can't go on with the next: what it had written may be lost.
func oncePassword(args json.RawMessage, plan string) (json.RawMessage, error) {
	const key = "chap_password"
	var a map[string]any
	if err := exact.Unmarshal(args, &a); err != nil {
		return nil, fmt.Errorf("read arguments of step %s: %w", stepExport, err)
	}
	secret, _ := a[key].(string)
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(plan))
	a[key] = hex.EncodeToString(h.Sum(nil)[:16])
	return json.Marshal(a)
}

// Lent is a disk that waits for its writer, or is being written.
type Lent struct {
	Initiator string `json:"initiator_name"`
	User      string `json:"chap_user"`
	Password  string `json:"chap_password"`
	Port      int    `json:"port"`
	// Image holds the arguments of write_image.
	Image map[string]any `json:"-"`
}

// Lent returns the disk that the node's machine lends to a writer now; nil, if none.
func (m Planner) Lent(n *node.Node) (*Lent, error) {
	j := n.Job
	s := j.Current()
	if s == nil || s.Status != node.StepRunning || j.PlanID == "" || j.Failure != "" || j.Abort ||
		!m.writtenByHost(n, *s) {
		return nil, nil
	}
	args, err := m.Args(n, j, *s)
	if err != nil {
		return nil, err
	}
	l := &Lent{Port: 3260, Image: map[string]any{}}
	if err := json.Unmarshal(args, l); err != nil {
		return nil, fmt.Errorf("read arguments of step %s: %w", stepExport, err)
	}
	if err := m.Site.ImageArgs(n, l.Image); err != nil {
		return nil, err
	}
	// The disk is the one that is lent, the memory the writer's own, and a file system alone would not boot everywhere.
	delete(l.Image, "root_device")
	delete(l.Image, "image_memory")
	l.Image["image_type"] = "whole-disk"
	return l, nil
}
