package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/node"
)

// plan looks at a run of in-band steps: makes sure that the agent has its plan and is alive. The results come in by AgentEvent.
func (e *Engine) plan(ctx context.Context, p *pass) (time.Duration, error) {
	n, j := p.n, p.n.Job
	connected := n.Boot != nil && n.Boot.Connected && !n.Boot.Ended
	switch {
	case n.Boot == nil || n.Boot.Ended || n.Boot.EnrolledAt.IsZero():
		return 0, p.bootAnew(ctx, orElse(j.Detail, "no agent is running"))

	case !connected:
		if n.Maintenance {
			return never, nil
		}
		if left := time.Until(n.Boot.LostAt.Add(e.cfg.SessionGrace)); left > 0 {
			return left, nil
		}
		return 0, p.bootAnew(ctx, fmt.Sprintf("the agent was out of reach for %s during step %s", e.cfg.SessionGrace, j.Current().Name))

	case j.PlanID == "":
		_, err := p.change(ctx, func(n *node.Node, also *node.Also) error {
			j := n.Job
			n.Generation++
			for i := j.Index; i < len(j.Steps); i++ {
				j.Steps[i].Under = false // what steps of an earlier plan asked for has its own place now
			}
			j.PlanID, j.PlanGen, j.PlanFirst, j.PlanSent = uuid.NewString(), n.Generation, j.Index, time.Time{}
			j.Attempt++
			j.NotBefore, j.Detail = time.Time{}, ""
			return e.waitForAgent(n, also)
		})
		return 0, err

	case j.PlanSent.IsZero():
		plan, err := e.makePlan(n)
		if err != nil {
			return 0, p.fail(ctx, err.Error())
		}
		if err := e.agents().SendPlan(ctx, n.UUID, plan); err != nil {
			if ctx.Err() != nil {
				return never, ctx.Err()
			}
			// The stream just broke, or is about to be replaced: AgentUp or AgentLost comes, or the next try.
			e.log.Info("the plan could not be sent", "node", n.UUID, "err", err)
			if time.Since(e.lastSign(n.UUID, n.Boot.EnrolledAt)) > e.cfg.SessionGrace {
				return 0, p.bootAnew(ctx, fmt.Sprintf("the agent could not be reached for %s", e.cfg.SessionGrace))
			}
			return e.cfg.RetryBase, nil
		}
		e.lives(n.UUID)
		_, err = p.change(ctx, func(n *node.Node, also *node.Also) error {
			e.planSent(n, also)
			return nil
		})
		return 0, err
	}

	e.nowIn(n.UUID, j.Current().Name)
	if n.Maintenance {
		return never, nil
	}
	since := j.PlanSent
	if again := j.Current().RunsAgain; again.After(since) {
		since = again // until then there is nothing to say
	}
	if left := time.Until(e.lastSign(n.UUID, since).Add(e.cfg.Silence)); left > 0 {
		return left, nil
	}
	return 0, p.bootAnew(ctx, fmt.Sprintf("the agent is connected but said nothing about step %s for %s", j.Current().Name, e.cfg.Silence))
}

// planSent notes that the agent has the plan, unless that was noted: it may be quicker to begin with it than sending it is to be recorded.
func (e *Engine) planSent(n *node.Node, also *node.Also) {
	j := n.Job
	if !j.PlanSent.IsZero() {
		return
	}
	j.PlanSent = time.Now().UTC()
	var names []string
	for from, to := planRange(j); from < to; from++ {
		if j.Steps[from].Status != node.StepDone {
			names = append(names, j.Steps[from].Name)
		}
	}
	e.mark(n, also, node.MarkPlan, strings.Join(names, " "))
}

// planRange is the range of steps of the job's present plan. Steps of it may be done.
func planRange(j *node.Job) (from, to int) {
	to = j.PlanFirst
	for to < len(j.Steps) && j.Steps[to].InBand {
		to++
	}
	return j.PlanFirst, to
}

// makePlan is the job's present plan as it goes to the agent. Arguments are made here, so that what is secret in them is stored
// with the node only, once.
func (e *Engine) makePlan(n *node.Node) (node.Plan, error) {
	j := n.Job
	from, to := planRange(j)
	plan := node.Plan{ID: j.PlanID, Generation: j.PlanGen, Phase: j.Phase}
	for _, s := range j.Steps[from:to] {
		args, err := e.planArgs(n, j, s)
		if err != nil {
			return plan, err
		}
		plan.Steps = append(plan.Steps, node.PlanStep{Interface: s.Interface, Name: s.Name, Args: args, Stall: s.Stall})
	}
	return plan, nil
}

// computed tells whether the engine itself gives an argument of a step.
func computed(step, arg string) bool {
	switch step {
	case "write_image":
		return arg == "image_source" || arg == "root_device" || strings.HasPrefix(arg, "image_")
	case "write_configdrive":
		return arg == "configdrive"
	case "inject_files":
		return arg == "image_ca" || arg == "root_device"
	case "create_configuration":
		return arg == "target_raid_config"
	case stepLoadRamdisk:
		return true
	}
	return false
}

// imageArgs are the keys of instance_info that describe the image.
var imageArgs = []string{"image_os_hash_algo", "image_os_hash_value", "image_checksum", "image_disk_format", "image_signature",
	"image_pull_secret", "image_difference", "image_type", "ephemeral_format"}

// stepArgs are a step's arguments: what the node says, and over it what the client gave with the step.
func (e *Engine) stepArgs(n *node.Node, s node.JobStep) (json.RawMessage, error) {
	args := map[string]any{}
	raidArgs(n, s, args)
	switch s.Name {
	case "write_image":
		source, _ := n.InstanceInfo["image_source"].(string)
		args["image_source"] = e.imageURL(source)
		for _, k := range imageArgs {
			if v, ok := n.InstanceInfo[k].(string); ok && v != "" {
				args[k] = v
			}
		}
		layout, err := e.diskLayout(n)
		if err != nil {
			return nil, err
		}
		for k, v := range layout {
			args[k] = v
		}
		if mirrors, err := e.imageMirrors(n); err != nil {
			return nil, err
		} else if len(mirrors) > 0 {
			args["image_mirrors"] = mirrors
		}
		if keys, err := imageKeys(n); err != nil {
			return nil, err
		} else if len(keys) > 0 {
			args["image_keys"] = keys
		}
		hints, err := rootDevice(n)
		if err != nil {
			return nil, err
		}
		if hints != nil {
			args["root_device"] = hints
		}
		if v, ok := n.DriverInfo["image_ca"].(string); ok && v != "" {
			args["image_ca"] = v
		}
		if e.cfg.AllowUnverified {
			args["allow_unverified"] = true
		}
		if e.cfg.AllowMD5 {
			args["allow_md5"] = true
		}
	case "inspect":
		if t := e.cfg.Inspection.LLDPTimeout; t > 0 {
			args["lldp_timeout"] = int(t.Seconds())
		}
	case "rescue":
		if s.Interface == "rescue" {
			if err := rescueArgs(n, args); err != nil {
				return nil, err
			}
		}
	case "write_configdrive":
		if v := n.InstanceInfo["configdrive"]; v != nil {
			args["configdrive"] = v
		}
	case stepLoadRamdisk:
		if err := e.workloadArgs(n, args); err != nil {
			return nil, err
		}
	case "inject_files":
		if v, ok := n.DriverInfo["image_ca"].(string); ok && v != "" {
			args["image_ca"] = v
		}
		hints, err := rootDevice(n)
		if err != nil {
			return nil, err
		}
		if hints != nil {
			args["root_device"] = hints
		}
	case "erase_devices_metadata", "erase_devices", "erase_devices_express", "burnin_disk":
		if v := n.Properties["skip_block_devices"]; v != nil {
			args["skip_block_devices"] = v
		}
		if known := arrays(n.RAIDConfig); len(known) > 0 {
			args["arrays"] = known
		}
	}
	if len(s.Args) > 0 {
		given := map[string]any{}
		if err := json.Unmarshal(s.Args, &given); err != nil {
			return nil, fmt.Errorf("read arguments of step %s: %w", s.Name, err)
		}
		for k, v := range given {
			args[k] = v
		}
	}
	if err := injectedFiles(n, s, args); err != nil {
		return nil, err
	}
	b, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("make arguments of step %s: %w", s.Name, err)
	}
	return b, nil
}

// injectedFiles puts the files that the node says before those that the step is given, as Ironic's agent does it.
func injectedFiles(n *node.Node, s node.JobStep, args map[string]any) error {
	const key = "inject_files"
	if s.Name != key || n.Properties[key] == nil {
		return nil
	}
	files, ok := n.Properties[key].([]any)
	if !ok {
		return invalidf("inject_files of the node's properties is not a list of files")
	}
	switch given := args["files"].(type) {
	case nil:
	case []any:
		files = append(slices.Clone(files), given...)
	default: // refused by its declaration
		return nil
	}
	args["files"] = files
	return nil
}

// imageURL is where the agent gets an image: a URL or a reference to a registry as it is, a bare file name from the conductor; "" for anything else.
func (e *Engine) imageURL(source string) string {
	switch {
	case strings.HasPrefix(source, "http://"), strings.HasPrefix(source, "https://"), inRegistry(source):
		return source
	case source != "" && !strings.Contains(source, "/") && e.cfg.ImageBase != "":
		return strings.TrimSuffix(e.cfg.ImageBase, "/") + "/" + source
	}
	return ""
}

// maxMirrors is more than anybody has.
const maxMirrors = 16

// imageMirrors are the URLs of the same image at other places.
func (e *Engine) imageMirrors(n *node.Node) ([]string, error) {
	v := n.InstanceInfo["image_mirrors"]
	if v == nil {
		return nil, nil
	}
	list, ok := v.([]any)
	if !ok || len(list) > maxMirrors {
		return nil, invalidf("image_mirrors is not a list of at most %d URLs", maxMirrors)
	}
	var urls []string
	for _, item := range list {
		text, _ := item.(string)
		u := e.imageURL(text)
		if u == "" || inRegistry(u) {
			return nil, invalidf("image_mirrors has %q, which is not an http or https URL", redact(text))
		}
		urls = append(urls, u)
	}
	return urls, nil
}

// planAnew gives up the present plan; the next look makes a new one. What the old one's steps left for each other in the agent is gone with
// it, so where they leave anything (the image that is written, and not committed yet) all of them run again; else those that are done, which
// may have taken hours, stay done.
func (e *Engine) planAnew(j *node.Job, why string) {
	from, to := planRange(j)
	all := slices.ContainsFunc(j.Steps[from:to], func(s node.JobStep) bool { return s.Interface == "deploy" && s.Name == "write_image" })
	kept := slices.Clone(j.Steps[:from])
	j.Index = -1
	for _, s := range j.Steps[from:to] {
		if all && s.Under {
			continue // who asked for it will ask again
		}
		if all || s.Status != node.StepDone {
			s.Status, s.Result, s.StartedAt, s.EndedAt, s.RunsAgain = node.StepPending, nil, time.Time{}, time.Time{}, time.Time{}
			if j.Index < 0 {
				j.Index = len(kept)
			}
		}
		kept = append(kept, s)
	}
	if j.Index < 0 {
		j.Index = len(kept) // only the plan's end was not heard of
	}
	j.Steps = append(kept, j.Steps[to:]...)
	j.PlanID, j.PlanSent, j.Detail = "", time.Time{}, why
}

// bootAnew restarts the machine with a new boot of the agent, or fails the job when that has been done often enough.
func (p *pass) bootAnew(ctx context.Context, why string) error {
	e := p.e
	_, err := p.change(ctx, func(n *node.Node, also *node.Also) error {
		j := n.Job
		boot := -1
		for i, s := range j.Steps {
			if bootsAgent(s) {
				boot = i
			}
		}
		if boot < 0 {
			return e.fail(n, also, why)
		}
		if j.Boots >= e.cfg.MaxBoots {
			return e.fail(n, also, fmt.Sprintf("%s; the agent was booted %d times for this job, which is the limit: look at the node's console and its power supply", why, j.Boots))
		}
		if j.PlanID != "" {
			e.planAnew(j, why)
		}
		j.Steps[boot].Status = node.StepPending
		j.Index, j.Note, j.Attempt, j.Detail = boot, "", 0, why
		e.closeBoot(n)
		e.mark(n, also, node.MarkBootAgain, why)
		e.history(n, also, "boot", "WARNING", "the agent is booted anew: "+why, "")
		return e.resume(n, also)
	})
	if err == nil {
		e.agents().CloseSession(p.n.UUID)
		e.endProgress(p.n.UUID)
	}
	return err
}
