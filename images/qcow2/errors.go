package qcow2

import (
	"errors"
	"fmt"
	"io"
)

// Error says what is wrong with an image and what its owner can do.
type Error struct {
	Err    error
	Remedy string
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// ErrChanged is the cause when what was read of the file first is not what came in its stream.
var ErrChanged = errors.New("the image was changed while it was fetched")

const (
	remedyDamaged   = "look at it with qemu-img check, or take it from where it came once more"
	remedyTruncated = "check that the image file on the server is complete"
	remedyClusters  = "use larger clusters: qemu-img convert -O qcow2 -o cluster_size=2M, or publish it: ingot image publish"
)

func refuse(remedy, format string, args ...any) error {
	return &Error{Err: fmt.Errorf("the qcow2 image can't be used: "+format, args...), Remedy: remedy}
}

func damaged(format string, args ...any) error {
	return &Error{Err: fmt.Errorf("the qcow2 image is damaged: "+format, args...), Remedy: remedyDamaged}
}

func truncated(where string) error {
	return &Error{Err: fmt.Errorf("the qcow2 image is truncated: it ends %s: %w", where, io.ErrUnexpectedEOF),
		Remedy: remedyTruncated}
}

func changed(what string) error {
	return &Error{Err: fmt.Errorf("%w: %s", ErrChanged, what),
		Remedy: "try again; give a new image a new name instead of replacing the file"}
}
