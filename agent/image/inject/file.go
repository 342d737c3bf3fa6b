package inject

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/step"
)

const (
	maxFiles = 1000
	maxFile  = 64 << 20
	maxAll   = 128 << 20 // all are in memory until all are known to fit
	maxPath  = 4096
)

const (
	fetchTries = 5
	fetchLimit = 5 * time.Minute // for one attempt
)

// file is one of the argument files.
type file struct {
	Path      string          `json:"path"`
	Partition json.RawMessage `json:"partition"`
	Content   *string         `json:"content"`
	URL       string          `json:"url"`
	SHA256    string          `json:"sha256"`
	Deleted   bool            `json:"deleted"`
	Mode      json.RawMessage `json:"mode"`
	DirMode   json.RawMessage `json:"dirmode"`
	Owner     json.RawMessage `json:"owner"`
	Group     json.RawMessage `json:"group"`

	partition     string
	mode, dirMode *uint16
	owner, group  *person
	data          []byte
}

// person is an owner or group: a number, or a name in the system's files.
type person struct {
	id   uint32
	name string
}

const remedyFiles = "correct files (or the node's property inject_files): objects with path, and content, url or deleted"

// parse parses and checks all files, and returns all faults.
func parse(raw json.RawMessage) ([]*file, error) {
	if absent(raw) {
		return nil, nil
	}
	var each []json.RawMessage
	if err := json.Unmarshal(raw, &each); err != nil {
		return nil, step.Failf(remedyFiles, "files is not a list")
	}
	if len(each) > maxFiles {
		return nil, step.Failf("put many files into an archive, or into the image", "%d files are more than %d",
			len(each), maxFiles)
	}
	var files []*file
	var faults []string
	for k, b := range each {
		f := &file{}
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.DisallowUnknownFields()
		err := dec.Decode(f)
		if err == nil {
			err = f.check()
		}
		if err != nil {
			name := fmt.Sprintf("file %d", k+1)
			if f.Path != "" {
				name += fmt.Sprintf(" (%.200q)", f.Path)
			}
			faults = append(faults, name+": "+strings.TrimPrefix(err.Error(), "json: "))
		}
		files = append(files, f)
	}
	if len(faults) > 0 {
		return nil, step.Fail(remedyFiles, errors.New(strings.Join(faults, "; ")))
	}
	return files, nil
}

func (f *file) check() (err error) {
	if f.partition, err = text(f.Partition); err != nil {
		return fmt.Errorf("partition %w", err)
	}
	switch {
	case f.Path == "" || len(f.Path) > maxPath || strings.IndexByte(f.Path, 0) >= 0:
		return errors.New("it has no path, or one that is too long")
	case strings.HasSuffix(f.Path, "/"):
		return errors.New("its path is that of a folder")
	case strings.Contains("/"+f.Path+"/", "/../"):
		return errors.New("its path has '..' in it")
	case path.Dir(path.Clean("/"+f.Path)) == "/" && f.partition == "":
		return errors.New("a file in the root folder needs partition")
	}
	if f.Content != nil && f.URL == "" && strings.Contains(*f.Content, "://") { // as in Ironic
		f.URL, f.Content = *f.Content, nil
	}
	given := 0
	for _, is := range []bool{f.Content != nil, f.URL != "", f.Deleted} {
		if is {
			given++
		}
	}
	if given != 1 {
		return errors.New("it needs one of content, url and deleted")
	}
	if f.Content != nil {
		clean := strings.NewReplacer("\n", "", "\r", "", " ", "", "\t", "", "=", "").Replace(*f.Content)
		if f.data, err = base64.RawStdEncoding.DecodeString(clean); err != nil {
			return errors.New("content is not base64")
		}
		f.Content = nil
	}
	if f.URL != "" && !strings.HasPrefix(f.URL, "http://") && !strings.HasPrefix(f.URL, "https://") {
		return errors.New("its URL is not an http or https URL")
	}
	if sum, err := hex.DecodeString(f.SHA256); err != nil || f.SHA256 != "" && len(sum) != sha256.Size {
		return errors.New("sha256 is not 64 hexadecimal digits")
	}
	if f.SHA256 != "" && f.Deleted {
		return errors.New("sha256 can't be used with deleted")
	}
	if f.mode, err = permissions(f.Mode); err != nil {
		return fmt.Errorf("mode %w", err)
	}
	if f.dirMode, err = permissions(f.DirMode); err != nil {
		return fmt.Errorf("dirmode %w", err)
	}
	if f.owner, err = who(f.Owner); err != nil {
		return fmt.Errorf("owner %w", err)
	}
	if f.group, err = who(f.Group); err != nil {
		return fmt.Errorf("group %w", err)
	}
	return nil
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// text parses a string, or a whole number as one.
func text(raw json.RawMessage) (string, error) {
	if absent(raw) {
		return "", nil
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var n uint32
	if json.Unmarshal(raw, &n) == nil {
		return strconv.FormatUint(uint64(n), 10), nil
	}
	return "", errors.New("is neither a string nor a number")
}

// permissions are a number, as in Ironic (420 is 0644), or a string of octal digits.
func permissions(raw json.RawMessage) (*uint16, error) {
	if absent(raw) {
		return nil, nil
	}
	var n uint64
	var s string
	err := json.Unmarshal(raw, &n)
	if err != nil && json.Unmarshal(raw, &s) == nil {
		n, err = strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 16)
	}
	if err != nil || n > 0o7777 {
		return nil, errors.New(`is neither a number up to 4095 (octal 7777) nor a string of octal digits like "0644"`)
	}
	m := uint16(n)
	return &m, nil
}

func who(raw json.RawMessage) (*person, error) {
	if absent(raw) {
		return nil, nil
	}
	s, err := text(raw)
	if err != nil {
		return nil, err
	}
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return &person{id: uint32(n)}, nil
	}
	if s == "" || len(s) > 100 || strings.ContainsAny(s, ":\n\x00") {
		return nil, errors.New("is neither a number nor a name")
	}
	return &person{name: s}, nil
}

// load fetches remote content, and compares digests.
func load(ctx context.Context, c *step.Call, client *http.Client, uuid string, files []*file) error {
	total := 0
	for k, f := range files {
		if f.URL != "" {
			c.Report(step.Progress{Phase: fmt.Sprintf("fetch file %d of %d", k+1, len(files))})
			var err error
			if f.data, err = get(ctx, client, uuid, f.URL); err != nil {
				return fmt.Errorf("%s: %w", f.Path, err)
			}
		}
		if len(f.data) > maxFile {
			return tooLarge(f.Path)
		}
		if total += len(f.data); total > maxAll {
			return step.Failf("put them into the image", "the files have more than %d MiB together", maxAll>>20)
		}
		if f.SHA256 != "" {
			if sum := sha256.Sum256(f.data); !strings.EqualFold(hex.EncodeToString(sum[:]), f.SHA256) {
				return step.Failf("correct sha256, or the file at the URL",
					"%s: its content has the SHA-256 sum %x, but has to have %s", f.Path, sum, f.SHA256)
			}
		}
	}
	return nil
}

func tooLarge(name string) error {
	return step.Failf("put it into the image, or fetch it at the system's first boot", "%s has more than %d MiB", name,
		maxFile>>20)
}

const remedyURL = "correct the file's URL, or put the file there"

// get fetches a file. It is small: after an error it starts again. The URL may be secret.
func get(ctx context.Context, client *http.Client, uuid, raw string) ([]byte, error) {
	// Ironic's agent can insert any field of the node. This agent knows only the node's UUID.
	raw = strings.ReplaceAll(raw, "{node[uuid]}", uuid)
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return nil, step.Failf(remedyURL, "its URL can't be understood")
	}
	if strings.ContainsAny(raw, "{}") {
		return nil, step.Failf("use {node[uuid]} alone", "its URL has a placeholder that is not known here")
	}
	where := fetch.Redact(u)
	wait := 500 * time.Millisecond
	for try := 1; ; try++ {
		body, final, err := once(ctx, client, raw)
		if err == nil {
			return body, nil
		}
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		err = fmt.Errorf("fetch %s: %w", where, err)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if final {
			return nil, step.Fail(remedyURL, err)
		}
		if try == fetchTries {
			return nil, step.Retryable(
				"check that its server runs, that the provisioning network leads to it, and its certificate (verify_ca)", err)
		}
		if err := step.Sleep(ctx, wait); err != nil {
			return nil, err
		}
		wait *= 2
	}
}

// once tries once; final means that a retry is pointless.
func once(ctx context.Context, client *http.Client, u string) (body []byte, final bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, true, errors.New("the URL is impossible")
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, false, err
	}
	defer resp.Body.Close()
	if code := resp.StatusCode; code != http.StatusOK {
		return nil, code < 500 && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout,
			fmt.Errorf("the server answered %d %s", code, http.StatusText(code))
	}
	if resp.ContentLength > maxFile {
		return nil, true, fmt.Errorf("it has %d bytes, of which %d are allowed", resp.ContentLength, maxFile)
	}
	if resp.ContentLength >= 0 { // so that the buffer need not grow
		body = make([]byte, resp.ContentLength)
		_, err = io.ReadFull(resp.Body, body)
		return body, false, err
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxFile+1))
	if err == nil && len(body) > maxFile {
		return nil, true, fmt.Errorf("it has more than the %d bytes that are allowed", maxFile)
	}
	return body, false, err
}
