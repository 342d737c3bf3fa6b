// Package compared has findings of errorlint, and what passes.
package compared

import (
	"errors"
	"io"
)

var errFull = errors.New("full")

func full(err error) bool {
	return err == errFull // want `errorlint: comparing with == will fail on wrapped errors`
}

func ended(err error) bool { return err == io.EOF }

var _ = []any{full, ended}
