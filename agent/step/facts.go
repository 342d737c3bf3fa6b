package step

import (
	"bytes"
	"io"
	"sync"
)

func bytesReader(b []byte) io.Reader { return bytes.NewReader(b) }

// Facts holds data that steps of a plan leave for later steps of the same plan: which disk was chosen, what is still to
// commit. Each package defines its own key type and value. Safe for concurrent use.
type Facts struct {
	mu sync.Mutex
	m  map[any]any
}

// Set stores v under key, replacing a previous value.
func (f *Facts) Set(key, v any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.m == nil {
		f.m = map[any]any{}
	}
	f.m[key] = v
}

// Get returns the value of key, or nil.
func (f *Facts) Get(key any) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.m[key]
}
