package openfs

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
)

// Content is a file to write, with its path, which has no leading slash.
type Content struct {
	Path string
	Data []byte
	// Size, if larger than Data's, makes the file so large; the rest is left to the caller. Only images of package
	// iso9660 have such files.
	Size int64
}

// Node is a file or directory of a tree to write. Own is the writer's data.
type Node[T any] struct {
	Name     string
	Dir      bool
	Data     []byte
	Size     int64 // of the content, of which Data is the beginning
	Children []*Node[T]
	Own      T
}

// Rules are the limits of a file system. All numbers are maximums.
type Rules struct {
	What      string // "a FAT", for errors
	Files     int
	Depth     int    // parts of a path
	Units     int    // of UTF-16 in a name
	Bytes     int    // of UTF-8 in a name
	Forbidden string // characters
	Fold      bool   // names that differ only in case are the same
}

// Plant makes the tree of files. Directories come from the files' paths.
func Plant[T any](files []Content, r Rules) (*Node[T], error) {
	if len(files) > r.Files {
		return nil, fmt.Errorf("%d files are too many", len(files))
	}
	root := &Node[T]{Dir: true}
	for _, f := range files {
		parts := strings.Split(f.Path, "/")
		if len(parts) > r.Depth {
			return nil, fmt.Errorf("path of %d folders is too deep", len(parts))
		}
		at := root
		for i, part := range parts {
			if part == "" || part == "." || part == ".." || len(utf16.Encode([]rune(part))) > r.Units ||
				len(part) > r.Bytes || strings.ContainsAny(part, r.Forbidden) {
				return nil, fmt.Errorf("file name %q can't be on %s", part, r.What)
			}
			last := i == len(parts)-1
			j := slices.IndexFunc(at.Children, func(n *Node[T]) bool {
				return n.Name == part || r.Fold && strings.EqualFold(n.Name, part)
			})
			if j < 0 {
				j = len(at.Children)
				at.Children = append(at.Children, &Node[T]{Name: part, Dir: !last})
			} else if last || !at.Children[j].Dir {
				return nil, fmt.Errorf("two files with the name %q", f.Path)
			}
			at = at.Children[j]
		}
		at.Data, at.Size = f.Data, max(f.Size, int64(len(f.Data)))
	}
	return root, nil
}

// PlainName reduces a name to characters that every system accepts, up to a length.
func PlainName(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r - 'a' + 'A'
		}
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, s)
	return s[:min(len(s), limit)]
}
