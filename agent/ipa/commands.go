package ipa

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ingot-metal/ingot/agent/ipa/command"
	"github.com/ingot-metal/ingot/agent/ipa/steps"
	"github.com/ingot-metal/ingot/agent/step"
	"golang.org/x/crypto/bcrypt"
)

// commands is the table of the API's commands. over ends the service.
func (a *Agent) commands(over context.CancelCauseFunc) command.Table {
	t := command.Table{
		"standby": {
			"get_partition_uuids": {Run: func(context.Context, command.Params) (any, error) {
				return a.runner.Partitions(), nil
			}},
			"sync": {Run: func(context.Context, command.Params) (any, error) {
				a.o.System.Sync()
				return nil, nil
			}},
			"power_off": {Async: true, Run: a.leave(over, "off")},
			"run_image": {Async: true, Run: a.leave(over, "reboot")},
		},
		"image": {"install_bootloader": {Async: true, Run: a.runner.InstallBootloader}},
		"log":   {"collect_system_logs": {Private: true, Run: a.collectLogs}},
		"rescue": {"finalize_rescue": {Run: func(ctx context.Context, p command.Params) (any, error) {
			return a.finalizeRescue(ctx, p, over)
		}}},
		"system": {"lockdown": {Run: func(ctx context.Context, _ command.Params) (any, error) {
			return command.Ending{Then: func() {
				over(errOver)
				if err := a.o.Network.Leave(context.WithoutCancel(ctx)); err != nil {
					a.log.Error("the network could not be left", "err", err)
				}
				a.o.Status("locked down: the machine waits to be reset")
			}}, nil
		}}},
	}
	for _, k := range steps.Kinds {
		t[string(k.Phase)] = map[string]command.Command{
			"get_" + string(k.Phase) + "_steps": {Check: k.CheckNode, Run: func(ctx context.Context,
				_ command.Params) (any, error) {
				// Ironic counts what is missing now as missing for good.
				if err := a.o.System.Settle(ctx); err != nil {
					a.log.Warn("devices may be missing", "err", err)
				}
				return a.runner.List(k), nil
			}},
			"execute_" + string(k.Phase) + "_step": {Async: true, Check: k.CheckStep, Run: func(ctx context.Context,
				p command.Params) (any, error) {
				return a.runner.Execute(ctx, k, p, a.settings)
			}},
		}
	}
	return t
}

// endTimeout is how long disks may take to flush at the end. The conductor forces the power off after 35 seconds.
const endTimeout = 30 * time.Second

// leave ends the boot after the answer.
func (a *Agent) leave(over context.CancelCauseFunc, how string) func(context.Context, command.Params) (any, error) {
	return func(ctx context.Context, _ command.Params) (any, error) {
		return command.Ending{Then: func() {
			a.o.Status("ending this boot: %s", how)
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
			defer cancel()
			if err := a.o.System.End(end, how); err != nil {
				// The conductor waits for the power state, and forces it when this takes too long.
				a.log.Error("the boot could not be ended", "how", how, "err", err)
				return
			}
			over(errOver)
		}}, nil
	}
}

func (a *Agent) collectLogs(context.Context, command.Params) (any, error) {
	if a.o.Logs == nil {
		return nil, errors.New("this agent keeps no logs")
	}
	b, err := a.o.Logs()
	if err != nil && len(b) == 0 {
		return nil, err
	}
	if err != nil {
		a.log.Warn("the logs are incomplete", "err", err)
	}
	return map[string]string{"system_logs": base64.StdEncoding.EncodeToString(b)}, nil
}

// maxPassword is bcrypt's limit in bytes.
const maxPassword = 72

// finalizeRescue opens the machine for logins and ends the service; the network stays.
func (a *Agent) finalizeRescue(ctx context.Context, p command.Params, over context.CancelCauseFunc) (any, error) {
	var password string
	hashed := false
	if json.Unmarshal(p["rescue_password"], &password) != nil || password == "" {
		return nil, command.InvalidParams("rescue_password is missing")
	}
	if v, has := p["hashed"]; has && json.Unmarshal(v, &hashed) != nil {
		return nil, command.InvalidParams("hashed is neither true nor false")
	}
	if !hashed {
		if len(password) > maxPassword {
			return nil, fmt.Errorf("a rescue password that is not hashed can have %d bytes", maxPassword)
		}
		b, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
		if err != nil {
			return nil, fmt.Errorf("hash the rescue password: %w", err)
		}
		password = string(b)
	}
	args, err := json.Marshal(map[string]string{"password_hash": password})
	if err != nil {
		return nil, err
	}
	open := step.Planned{Interface: "rescue", Name: "rescue", Args: args}
	if _, err := a.runner.Run(ctx, step.Rescue, "", open); err != nil {
		return nil, &command.Error{Type: "CommandExecutionError", Code: http.StatusInternalServerError,
			Message: "Command execution failed", Details: steps.Text(err)}
	}
	return command.Ending{Then: func() {
		a.save(nil)
		a.o.Status("rescue: log in by ssh as rescue")
		over(errOver)
	}}, nil
}
