package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// nodeError is an error about one node, so that the advice can name it.
type nodeError struct {
	node string
	err  error
}

func (e *nodeError) Error() string { return e.err.Error() }
func (e *nodeError) Unwrap() error { return e.err }

// about marks an error as being about a node.
func about(node string, err error) error {
	if err == nil {
		return nil
	}
	return &nodeError{node, err}
}

// status is the HTTP status of the answer that an error comes from, or 0.
func status(err error) int {
	if answer := (*rest.Error)(nil); errors.As(err, &answer) {
		return answer.Status
	}
	return 0
}

// uninspected adds to an error what to do when it says that a node has no inventory.
func uninspected(node string, err error) error {
	if answer := (*rest.Error)(nil); errors.As(err, &answer) && strings.Contains(answer.Message, "inventory") {
		return advise(err, "Is it inspected? ingot node inspect %s", node)
	}
	return err
}

// advised is an error with what to do about it.
type advised struct {
	err  error
	hint string
}

func (e *advised) Error() string { return e.err.Error() }
func (e *advised) Unwrap() error { return e.err }

// advise adds to an error what to do about it.
func advise(err error, format string, args ...any) error {
	return &advised{err, fmt.Sprintf(format, args...)}
}

// Message makes of an error what a user reads: what went wrong, and on a line of its own what to do next, if that is
// known.
func Message(err error) string {
	name := "NAME"
	var of *nodeError
	if errors.As(err, &of) {
		name = of.node
	}
	text := strings.TrimSuffix(err.Error(), ".")
	if hint := hint(err, name); hint != "" {
		text += "\n" + hint
	}
	return text
}

func hint(err error, name string) string {
	var (
		down   *client.ConnectError
		failed *client.FailedError
		answer *rest.Error
		own    *advised
	)
	switch {
	case errors.As(err, &own):
		return own.hint
	case errors.Is(err, context.Canceled):
		if !errors.As(err, new(*nodeError)) {
			return "" // what was asked for ended with the command
		}
		return fmt.Sprintf("The work on the node goes on. Look at it with: ingot node watch %s", name)
	case errors.As(err, &down):
		return "Is ingotd running there? Start it, or say where it is with --endpoint or INGOT_ENDPOINT."
	case errors.As(err, &failed):
		return afterFailure(failed.State, name)
	case !errors.As(err, &answer):
		return ""
	}
	switch answer.Status {
	case http.StatusUnauthorized:
		return "Say who you are: OS_USERNAME and OS_PASSWORD with OS_AUTH_TYPE=http_basic, or OS_AUTH_URL and what else Keystone needs, or OS_TOKEN. `ingot --help` has the list."
	case http.StatusForbidden:
		return ""
	case http.StatusNotFound:
		if strings.HasPrefix(answer.Message, "Node ") {
			return "The nodes there are: ingot node list"
		}
		if strings.HasPrefix(answer.Message, "Pool ") {
			return "The pools there are: ingot pool list"
		}
	case http.StatusConflict:
		if strings.Contains(answer.Message, "locked") || strings.Contains(answer.Message, "transition") {
			return fmt.Sprintf("Work on the node is under way. Look at it with: ingot node watch %s", name)
		}
	case http.StatusPreconditionFailed:
		return fmt.Sprintf("What it is now, and its ETag: ingot node show %s", name)
	case http.StatusBadRequest:
		if _, state, ok := strings.Cut(answer.Message, "while it is in state "); ok {
			return nextFrom(strings.Trim(state, `". `), name)
		}
		if strings.Contains(answer.Message, "image") &&
			(strings.Contains(answer.Message, "digest") || strings.Contains(answer.Message, "checksum")) {
			return "Say what the image's digest is: --checksum sha256:HEX (sha256sum FILE computes it)"
		}
	}
	return ""
}

// afterFailure says how to get on from a state in which work has ended badly.
func afterFailure(state, name string) string {
	look := fmt.Sprintf("What happened: ingot node history %s; the agent's log: ingot node logs %s\n", name, name)
	switch state {
	case "enroll":
		return fmt.Sprintf(
			"Correct what is wrong (ingot node set %s --driver-info KEY=VALUE), then: ingot node manage %s", name, name)
	case "inspect failed":
		return look + fmt.Sprintf("Then try again: ingot node inspect %s; or give up on it: ingot node manage %s", name,
			name)
	case "clean failed":
		return look + fmt.Sprintf("Then: ingot node manage %s, and again: ingot node provide %s", name, name)
	case "deploy failed":
		return look + fmt.Sprintf("Then deploy again, or clean up: ingot node undeploy %s", name)
	case "error":
		return look + fmt.Sprintf("Then: ingot node undeploy %s", name)
	}
	return look
}

// nextFrom says what can be done with a node in a state that did not allow what was asked for.
func nextFrom(state, name string) string {
	verbs := map[string]string{
		"enroll": "manage", "manageable": "inspect, provide", "available": "deploy, manage", "active": "undeploy",
		"deploy failed": "deploy, undeploy", "clean failed": "manage", "inspect failed": "inspect, manage",
		"error": "undeploy", "wait call-back": "undeploy, abort", "clean wait": "abort", "inspect wait": "abort",
	}[state]
	if verbs == "" {
		return fmt.Sprintf("See where it is going: ingot node watch %s", name)
	}
	return fmt.Sprintf("In this state it can do: %s (ingot node VERB %s)", verbs, name)
}
