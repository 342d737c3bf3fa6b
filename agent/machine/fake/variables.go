package fake

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/u-root/u-root/pkg/efivarfs"
)

// Variables are a firmware's variables, in memory.
type Variables struct {
	Refuse  error // error of every change
	Forgets bool  // reports success for every change, and stores none

	mu     sync.Mutex
	values map[efivarfs.VariableDescriptor]variable
}

type variable struct {
	attributes efivarfs.VariableAttributes
	value      []byte
}

// Get returns a variable.
func (v *Variables) Get(d efivarfs.VariableDescriptor) (efivarfs.VariableAttributes, []byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	x, ok := v.values[d]
	if !ok {
		return 0, nil, efivarfs.ErrVarNotExist
	}
	return x.attributes, slices.Clone(x.value), nil
}

// List returns the names of all variables.
func (v *Variables) List() ([]efivarfs.VariableDescriptor, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.SortedFunc(maps.Keys(v.values),
		func(a, b efivarfs.VariableDescriptor) int { return strings.Compare(a.Name, b.Name) }), nil
}

// Set creates or changes a variable.
func (v *Variables) Set(d efivarfs.VariableDescriptor, a efivarfs.VariableAttributes, value []byte) error {
	return v.change(func() error {
		if v.values == nil {
			v.values = map[efivarfs.VariableDescriptor]variable{}
		}
		v.values[d] = variable{a, slices.Clone(value)}
		return nil
	})
}

// Remove deletes a variable.
func (v *Variables) Remove(d efivarfs.VariableDescriptor) error {
	return v.change(func() error {
		if _, ok := v.values[d]; !ok {
			return efivarfs.ErrVarNotExist
		}
		delete(v.values, d)
		return nil
	})
}

func (v *Variables) change(f func() error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.Refuse != nil || v.Forgets {
		return v.Refuse
	}
	return f()
}
