package qcow2

import (
	"errors"
	"fmt"
	"io"
)

// Error is a fault of an image with the remedy for its owner.
type Error struct {
	Err    error
	Remedy string
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ErrChanged means that the data read first differs from the stream.
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
