package command

import "net/http"

// Error is a command's failure in the form of ironic-python-agent. The conductor shows Details.
type Error struct {
	Type    string `json:"type"`
	Code    int    `json:"code"`
	Message string `json:"message"`
	Details string `json:"details"`
}

func (e *Error) Error() string { return e.Message + ": " + e.Details }

// Mismatch is the error of a command for another version of the agent's steps.
func Mismatch(details string) error {
	return &Error{Type: "VersionMismatch", Code: http.StatusConflict,
		Message: "Hardware managers version mismatch, reload agent with correct version", Details: details}
}

// InvalidParams refuses a command's parameters.
func InvalidParams(details string) error {
	return &Error{Type: "InvalidCommandParamsError", Code: http.StatusBadRequest,
		Message: "Invalid command parameters", Details: details}
}

func invalidCommand(details string) error {
	return &Error{Type: "InvalidCommandError", Code: http.StatusBadRequest, Message: "Invalid command",
		Details: details}
}

func notFound(details string) error {
	return &Error{Type: "RequestedObjectNotFoundError", Code: http.StatusNotFound, Message: "Not found",
		Details: details}
}

func busy(name string) error {
	return &Error{Type: "AgentIsBusy", Code: http.StatusConflict, Message: "Agent is busy",
		Details: "executing command " + name}
}
