package openfs

import (
	"fmt"
	"strings"
)

// MaxLinks is the maximum number of symbolic links in resolving a path, as in Linux.
const MaxLinks = 40

// Folders are the functions for resolving a path.
type Folders[I any] struct {
	Child  func(dir I, name string) (I, error) // name is neither empty nor "." nor ".."
	IsLink func(i I) bool
	Link   func(i I) (target string, err error)
	None   error // wrapped by the error of a path with too many links
}

// Walk resolves a path from a root. Symbolic links are followed inside it, so that no path leads out: the root's parent
// is the root, where an absolute link begins too. A link at the path's end is followed only if follow is set. Errors
// are those of Folders.
func (f Folders[I]) Walk(root I, name string, follow bool) (I, error) {
	var none I
	links, at := 0, root
	var trail []I // the parent directories
	parts := strings.Split(name, "/")
	for len(parts) > 0 {
		part := parts[0]
		parts = parts[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if len(trail) > 0 {
				at, trail = trail[len(trail)-1], trail[:len(trail)-1]
			}
			continue
		}
		i, err := f.Child(at, part)
		if err != nil {
			return none, err
		}
		if !f.IsLink(i) || len(parts) == 0 && !follow {
			trail, at = append(trail, at), i
			continue
		}
		if links++; links > MaxLinks {
			return none, fmt.Errorf("%w: too many symbolic links at %s", f.None, name)
		}
		target, err := f.Link(i)
		if err != nil {
			return none, err
		}
		if strings.HasPrefix(target, "/") {
			at, trail = root, nil
		}
		parts = append(strings.Split(target, "/"), parts...)
	}
	return at, nil
}
