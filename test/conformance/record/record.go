// Package record keeps requests and the answers to them: JSON lines, compressed. The same exchanges give the same
// bytes.
package record

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/ingot-metal/ingot/test/conformance/ask"
	"github.com/ingot-metal/ingot/test/conformance/compare"
)

// Exchange is a request and its answer.
type Exchange struct {
	Ask    ask.Ask        `json:"q"`
	Answer compare.Answer `json:"a"`
}

// Write writes exchanges.
func Write(w io.Writer, es []Exchange) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(z) // maps in order of their keys
	for _, e := range es {
		if err := enc.Encode(e); err != nil {
			return fmt.Errorf("write a recording: %w", err)
		}
	}
	return z.Close()
}

// Read reads what Write wrote.
func Read(r io.Reader) (es []Exchange, err error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("read a recording: %w", err)
	}
	for d := json.NewDecoder(z); ; {
		var e Exchange
		switch err := d.Decode(&e); {
		case errors.Is(err, io.EOF):
			return es, nil
		case err != nil:
			return nil, fmt.Errorf("read exchange %d of a recording: %w", len(es), err)
		}
		es = append(es, e)
	}
}
