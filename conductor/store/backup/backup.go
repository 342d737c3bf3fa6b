// Package backup copies all data of a conductor into one file, and back.
//
// A backup is a tar archive: a manifest, the CA's certificate and key, the database, and on request the key that
// secrets in the database are sealed with. Without that key a backup reveals no secrets, because the CA's private key
// is sealed with it too, and only an operator who has the key from elsewhere can restore it. Agents' logs are not in
// it.
//
// The database is copied while the conductor works. Every write that was answered before the backup began is in it; of
// later writes, each is in it wholly or not at all. A file under its final name is complete and on disk.
package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
	"github.com/ingot-metal/ingot/conductor/store"
)

const (
	manifestName = "ingot-backup.json"
	sealedSuffix = ".sealed" // of the names of keys in the archive; other files have the names that they have on disk
	format       = 1
)

// named is a file of the data directory.
type named struct{ name, what string }

// secret is a key of the data directory, which is sealed in the archive, with its other files. The first of those shows
// whether the key exists.
type secret struct {
	key    named
	beside []named
}

var secrets = []secret{
	{named{"ca.key", "the CA's key"}, []named{{"ca.crt", "the CA's certificate"}}},
	// The CA that follows, while it is rotated.
	{named{"ca.next.key", "the next CA's key"}, []named{{"ca.next.crt", "the next CA's certificate"},
		{"ca.next.from", "when the next CA takes over"}}},
	{named{"erasure.key", "the key of erasures"}, nil},
}

// ofSecret reports whether a name in the archive is that of a sealed key, or of one of its other files.
func ofSecret(name string) bool {
	return slices.ContainsFunc(secrets, func(k secret) bool {
		return name == k.key.name+sealedSuffix ||
			slices.ContainsFunc(k.beside, func(f named) bool { return f.name == name })
	})
}

// pack makes the parts of an archive of a secret; none when there is none.
func (k secret) pack(dir string, key []byte) ([]part, error) {
	var parts []part
	for i, f := range append(slices.Clone(k.beside), k.key) {
		p := part{name: f.name}
		var err error
		p.data, err = os.ReadFile(filepath.Join(dir, f.name))
		if i == 0 && errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.what, err)
		}
		if f == k.key {
			p.name += sealedSuffix
			if p.data, err = store.Seal(key, f.name, p.data); err != nil {
				return nil, fmt.Errorf("seal %s: %w", f.what, err)
			}
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// small is more than any file but the database has.
const small = 1 << 20

// manifest is the first file of the archive.
type manifest struct {
	Format int       `json:"format"`
	MadeAt time.Time `json:"made_at"`
	Host   string    `json:"host"`
	HasKey bool      `json:"has_key"`
	Bytes  int64     `json:"database_bytes"`
	SHA256 string    `json:"database_sha256"`
}

// Write backs up the data directory dir into file, which must not exist. withKey puts the key in. A nil key stands for
// the key file in dir.
func Write(ctx context.Context, dir, file string, key []byte, withKey bool) (err error) {
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("%s is there already: give the backup another name", file)
	}
	if key == nil {
		if _, err := os.Lstat(filepath.Join(dir, store.NextKeyFile)); err == nil {
			return errors.New(
				"the key is being rotated, or that was cut short: let it end, or start ingotd once, and try again")
		}
		if key, err = store.ReadKey(filepath.Join(dir, store.KeyFile)); err != nil {
			return err
		}
	}
	tmp, err := os.MkdirTemp(filepath.Dir(file), ".ingot-backup-")
	if err != nil {
		return fmt.Errorf("make a folder beside %s: %w", file, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	database := filepath.Join(tmp, store.DatabaseFile)
	if err := store.Snapshot(ctx, dir, database); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read host name: %w", err)
	}
	m := manifest{Format: format, MadeAt: time.Now().UTC(), Host: host, HasKey: withKey}
	if m.Bytes, m.SHA256, err = digest(database); err != nil {
		return err
	}
	parts := []part{{name: manifestName}}
	if parts[0].data, err = json.MarshalIndent(m, "", "  "); err != nil {
		return err
	}
	for _, k := range secrets {
		packed, err := k.pack(dir, key)
		if err != nil {
			return err
		}
		parts = append(parts, packed...)
	}
	if withKey {
		parts = append(parts, part{name: store.KeyFile, data: store.EncodeKey(key)})
	}
	made := filepath.Join(tmp, "backup")
	if err := archive(made, append(parts, part{name: store.DatabaseFile, file: database, size: m.Bytes})); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	if err := os.Link(made, file); err != nil { // unlike a rename, it does not replace a file that was made meanwhile
		return fmt.Errorf("write backup: %w", err)
	}
	return keyfile.SyncDir(filepath.Dir(file))
}

// part is one file of an archive: data, or the content of a file.
type part struct {
	name string
	data []byte
	file string
	size int64
}

func archive(path string, parts []part) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	for _, p := range parts {
		if err := p.write(w); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(w.Close(), f.Sync(), f.Close())
}

func (p part) write(w *tar.Writer) error {
	h := &tar.Header{Name: p.name, Mode: 0o600, Size: int64(len(p.data))}
	if p.file != "" {
		h.Size = p.size
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if p.file == "" {
		_, err := w.Write(p.data)
		return err
	}
	f, err := os.Open(p.file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

func digest(path string) (int64, string, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return n, hex.EncodeToString(h.Sum(nil)), err
}

// Target is where a backup is restored to.
type Target struct {
	Dir string // the data directory, which the caller has locked
	// Key is the one that the backup was made with; nil: the backup's, or that of a key file which lies in Dir already.
	Key []byte
	// Own is the key in the conductor's configuration; nil: it has a key file in Dir.
	Own []byte
}

// Restore puts a backup into a data directory. A database that is there and can be used is an error; one that can't is
// moved into a folder beside the restored files, with whatever else is in their way, and that folder is returned.
// Nothing is moved or put in place before all of the backup has proved to be whole and the key to fit.
func Restore(ctx context.Context, file string, to Target) (aside string, err error) {
	dir := to.Dir
	unusable := false
	if _, err := os.Lstat(filepath.Join(dir, store.DatabaseFile)); err == nil {
		var broken *store.UnusableError
		switch err := store.Check(ctx, dir, to.Own); {
		case err == nil:
			return "", fmt.Errorf(
				"%s holds a database already, and it is whole: restore into an empty directory, or move what is there away", dir)
		case !errors.As(err, &broken):
			return "", err
		}
		unusable = true
	}
	tmp, err := os.MkdirTemp(dir, ".restore-")
	if err != nil {
		return "", fmt.Errorf("make a folder in %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	m, parts, err := extract(file, tmp)
	if err != nil {
		return "", fmt.Errorf("read backup %s: %w", file, err)
	}
	database := filepath.Join(tmp, store.DatabaseFile)
	n, sum, err := digest(database)
	if err != nil {
		return "", fmt.Errorf("read backup %s: %w", file, err)
	}
	if n != m.Bytes || sum != m.SHA256 {
		return "", fmt.Errorf("backup %s is damaged: the database in it has %d bytes with SHA-256 %s, not %d with %s",
			file, n, sum, m.Bytes, m.SHA256)
	}
	inPlace := filepath.Join(dir, store.KeyFile)
	given := to.Key
	if given == nil {
		given = to.Own
	}
	key, err := chooseKey(given, parts[store.KeyFile], inPlace, unusable)
	if err != nil {
		return "", err
	}
	switch err := store.Verify(ctx, database, key); {
	case errors.Is(err, store.ErrKey):
		return "", fmt.Errorf(
			"the key does not fit backup %s: give the key file of the conductor that it was made on, which was %s",
			file, m.Host)
	case err != nil:
		return "", fmt.Errorf("backup %s: %w", file, err)
	}
	put := map[string][]byte{}
	if to.Own == nil {
		put[store.KeyFile] = store.EncodeKey(key)
	}
	for _, k := range secrets {
		sealed := parts[k.key.name+sealedSuffix]
		if sealed == nil {
			continue
		}
		if put[k.key.name], err = store.Unseal(key, k.key.name, sealed); err != nil {
			return "", fmt.Errorf("backup %s: %s: %w", file, k.key.what, err)
		}
		for _, f := range k.beside {
			put[f.name] = parts[f.name]
		}
	}
	var inWay []string
	for name, data := range put {
		switch old, err := os.ReadFile(filepath.Join(dir, name)); {
		case errors.Is(err, fs.ErrNotExist):
		case err == nil && bytes.Equal(old, data):
		case unusable:
			inWay = append(inWay, name)
		case err != nil:
			return "", err
		default:
			return "", fmt.Errorf(
				"%s is there already and differs from the backup's: restore into an empty directory, or move it away",
				filepath.Join(dir, name))
		}
	}
	if unusable {
		if aside, err = store.SetAside(dir, time.Now(), inWay...); err != nil {
			return "", err
		}
	}
	// The database comes last: a directory without one can be restored into again.
	order := []string{store.KeyFile}
	for _, k := range secrets {
		order = append(order, k.key.name)
		for _, f := range slices.Backward(k.beside) {
			order = append(order, f.name)
		}
	}
	for _, name := range order {
		if data, ok := put[name]; ok {
			if err := keyfile.Write(filepath.Join(dir, name), data, 0o600); err != nil {
				return aside, fmt.Errorf("put %s in place: %w", name, err)
			}
		}
	}
	if err := store.Adopt(ctx, dir, database); err != nil {
		return aside, err
	}
	f, err := os.Open(database)
	if err != nil {
		return aside, err
	}
	if err := errors.Join(f.Sync(), f.Close(),
		os.Rename(database, filepath.Join(dir, store.DatabaseFile))); err != nil {
		return aside, fmt.Errorf("put the database in place: %w", err)
	}
	return aside, keyfile.SyncDir(dir)
}

// chooseKey says which key to use. A file that is in the directory must be the same, unless it is in the way as all
// there is.
func chooseKey(given, packed []byte, path string, inWay bool) ([]byte, error) {
	key := given
	if key == nil && packed != nil {
		var err error
		if key, err = store.DecodeKey(string(packed)); err != nil {
			return nil, fmt.Errorf("the key in the backup can't be used: %w", err)
		}
	}
	present, err := store.ReadKey(path)
	switch {
	case err == nil && key == nil:
		return present, nil
	case err == nil && string(present) != string(key) && !inWay:
		return nil, fmt.Errorf("%s is another key than that of the backup: move it away", path)
	case err != nil && key == nil:
		return nil, fmt.Errorf(
			"the backup was made without its key: give the key file of the conductor that it was made on (--key FILE), or put it at %s", path)
	}
	return key, nil
}

// extract reads an archive: the database goes into a file in dir, the rest is returned by name.
func extract(file, dir string) (m manifest, parts map[string][]byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return m, nil, err
	}
	defer f.Close()
	r := tar.NewReader(f)
	parts = map[string][]byte{}
	found := false
	for first := true; ; first = false {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return m, nil, fmt.Errorf("it is not a whole backup: %w", err)
		}
		switch {
		case h.Name == manifestName || h.Name == store.KeyFile || ofSecret(h.Name):
			if parts[h.Name], err = io.ReadAll(io.LimitReader(r, small)); err != nil {
				return m, nil, fmt.Errorf("it is not a whole backup: %w", err)
			}
		case h.Name == store.DatabaseFile:
			if err := unpack(r, filepath.Join(dir, store.DatabaseFile)); err != nil {
				return m, nil, fmt.Errorf("it is not a whole backup: %w", err)
			}
			found = true
		default:
			return m, nil, fmt.Errorf("it holds %q, which no backup of this version does", h.Name)
		}
		if !first {
			continue
		}
		if err := json.Unmarshal(parts[manifestName], &m); err != nil {
			return m, nil, errors.New("it is not a backup of Ingot")
		}
		if m.Format != format {
			return m, nil, fmt.Errorf("it has format %d, and this version of ingotd reads %d", m.Format, format)
		}
	}
	if !found {
		return m, nil, errors.New("it is not a whole backup: there is no database in it")
	}
	return m, parts, nil
}

func unpack(r io.Reader, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
