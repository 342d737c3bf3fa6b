package cli

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/oci"
	"github.com/ingot-metal/ingot/images/publish"
	"github.com/ingot-metal/ingot/tools/cli/render"
)

// builtinLevel is the highest level that is packed without the zstd program.
const builtinLevel = publish.MaxLevel

// keyPassword is the environment variable with the password of the key to sign with.
const keyPassword = "INGOT_KEY_PASSWORD"

// urlLike matches places that can't be meant as a folder. A single letter may be a drive.
var urlLike = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+:/`)

type publishOptions struct {
	out, name, signKey, cosignKey, passwordFile string
	compression                                 string
	level                                       int
	quiet                                       bool
}

func (p *program) imagePublish() *cobra.Command {
	o := publishOptions{compression: "zstd", level: 3}
	cmd := &cobra.Command{
		Use:   "publish SRC -o FOLDER|oci://REGISTRY/REPOSITORY:TAG",
		Short: "Publish an image in chunks, for fast and resumable deployments",
		Long: `Publish an image: SRC is a file, a block device, an http or https URL, or - for standard input, in any format that can be deployed. A qcow2
can't come through a pipe: its tables are wanted before its data.

The disk is cut into chunks that are packed one by one. Nodes fetch them in parallel, from several places and from each other, check each
before it is written, resume by chunk, and fetch only what has changed when they are deployed again. A folder can be served by any web
server; it may hold many images, which share what they have in common. What is there already is not stored or sent again.

An image for a registry is put together in a temporary folder first (TMPDIR, else /var/tmp), which takes as much space as the packed image.

docs/reference/published-image-format.md has the format.`,
		Example: `  ingot image publish debian-12.qcow2 -o /srv/images
  ingot image publish https://example.com/debian-12.raw.zst -o /srv/images --level 19 --sign-key ~/.minisign/minisign.key
  ingot image publish debian-12.qcow2 -o oci://registry.example.com/images/debian:12`,
		Args: oneArg("one image: a file, a URL, or - for standard input"),
	}
	return local(cmd, []option{
		opt("out,o", &o.out, "folder, or place in a registry"),
		// Here -o is where to write. A flag of the same name covers the global one together with its letter.
		opt("output", &p.output, "how to print: "+strings.Join(render.Formats, ", ")+"TEXT", render.Formats...),
		opt("name", &o.name, "name of the published image (default: the file's, without endings)"),
		opt("compression", &o.compression,
			"zstd, or lz4: half as large again, for links and disks that are faster than zstd unpacks", "zstd", "lz4"),
		opt("level", &o.level,
			fmt.Sprintf("of zstd, 1 to %d; 19 makes images a fifth smaller than 3 and takes many times as long", bestLevel)),
		opt("sign-key", &o.signKey, "file with the minisign secret key to sign with"),
		opt("cosign-key", &o.cosignKey, "file with the cosign secret key to sign with"),
		opt("password-file", &o.passwordFile, "file with the key's password (default: $"+keyPassword+
			", or it is asked for)"),
		opt("quiet,q", &o.quiet, "only the result"),
	}, func(ctx context.Context, args []string) error {
		if o.compression != "zstd" && o.compression != "lz4" {
			return usage("--compression %s is neither zstd nor lz4", o.compression)
		}
		if o.compression == "lz4" && cmd.Flags().Changed("level") {
			return usage("--level is for zstd; lz4 has none")
		}
		return remedied(p.publish(ctx, args[0], o))
	})
}

// ourWords is the advice of packages that know no command line, in the words of this one.
var ourWords = strings.NewReplacer(
	"give it another name", "give it another name: --name NAME",
	"give the image another name", "give the image another name: --name NAME",
	"give another level", "give another one: --level 1 to "+fmt.Sprint(bestLevel),
	"use it as it is where published images are read; ingot image publish made it",
	"use it as it is: it is the index of a published image",
	"give user and password by image_pull_secret, or by docker's configuration",
	"leave the password out, and log in: docker login", "give a user and password",
	"log in to the registry: docker login", "check the user and the password, and that they are for this registry",
	"log in to this registry: docker login",
	"check that image_source leads to the index of a published image, and publish the image again if it does",
	"give the NAME.ingot of a published image, and publish it again if this is one",
)

// remedied gives an error about an image its advice.
func remedied(err error) error {
	var refused *images.Error
	if errors.As(err, new(*advised)) || !errors.As(err, &refused) || refused.Remedy == "" {
		return err
	}
	remedy := ourWords.Replace(refused.Remedy)
	return advise(err, "%s%s.", strings.ToUpper(remedy[:1]), remedy[1:])
}

// unstored says what to do when a folder can't be written to.
func unstored(err error, o publishOptions) error {
	folder, advice := "An image for a registry is put together in a folder first: ", ""
	remote := oci.IsReference(o.out)
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		advice = choose(remote, folder+"make room there, or name a folder with more by TMPDIR.",
			"Make room and publish it again: what is stored already is used then.")
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOTDIR):
		advice = choose(remote, folder+"name one that can be written to by TMPDIR.",
			"Give a folder that can be written to: -o FOLDER.")
	default:
		return err
	}
	return advise(err, "%s", advice)
}

// published is the output of the command.
type published struct {
	Source    string  `json:"image_source"`
	HashAlgo  string  `json:"image_os_hash_algo"`
	HashValue string  `json:"image_os_hash_value"`
	Index     string  `json:"index,omitempty"` // path
	Content   string  `json:"content"`
	DiskSHA   string  `json:"disk_sha256"`
	Size      int64   `json:"virtual_bytes"`
	Data      int64   `json:"data_bytes"`
	Stored    int64   `json:"stored_bytes"`
	Objects   int     `json:"objects"`
	NewBytes  int64   `json:"new_bytes"`
	New       int     `json:"new_objects"`
	Chunks    int     `json:"chunks"`
	Signed    bool    `json:"signed"`
	Seconds   float64 `json:"seconds"`

	unsigned bool // the image that was there had a signature
}

func (p *program) publish(ctx context.Context, source string, o publishOptions) error {
	start := time.Now()
	if o.out == "" {
		return usage("say where to publish to: -o FOLDER or -o oci://REGISTRY/REPOSITORY:TAG")
	}
	if urlLike.MatchString(o.out) && !oci.IsReference(o.out) {
		return usage("-o %s is neither a folder nor oci://REGISTRY/REPOSITORY:TAG: publish to the folder that a web server serves, or to a registry", o.out)
	}
	po := publish.Options{Name: o.name, LZ4: o.compression == "lz4", Level: o.level, Meter: new(publish.Meter)}
	if o.level < 1 || o.level > bestLevel {
		return usage("--level %d is not one of 1 to %d", o.level, bestLevel)
	}
	var err error
	if o.level > builtinLevel {
		if po.Compress, err = zstdProgram(o.level); err != nil {
			return err
		}
	}
	if po.Sign, err = p.signers(o); err != nil {
		return err
	}
	src, err := p.openSource(ctx, source)
	if err != nil {
		return err
	}
	defer src.close()
	if po.Name == "" {
		if po.Name = publish.NameOf(src.name); source == "-" {
			return usage("say how the image is called: --name NAME")
		}
	}
	if po.Source = path.Base(filepath.ToSlash(src.name)); source == "-" {
		po.Source = po.Name
	}
	po.Unchanged = src.changed
	dir := publish.Dir(o.out)
	var ref oci.Reference
	if oci.IsReference(o.out) {
		if ref, err = oci.ParseReference(o.out); err != nil {
			return err
		}
		login, err := p.registry()
		if err != nil {
			return err
		}
		if err := oci.Prepare(ctx, ref, login); err != nil {
			return err
		}
		tmp, free, err := p.bigTemp()
		if err != nil {
			return unstored(err, o)
		}
		defer free()
		dir = publish.Dir(filepath.Join(tmp, "image"))
	}
	show := p.meter("publish", o.quiet, func() (done, total int64) {
		return po.Meter.Done.Load(), po.Meter.Total.Load()
	})
	r, err := publish.Image(ctx, src.Input, dir, po)
	show()
	if err != nil {
		return unstored(fmt.Errorf("publish %s: %w", src.name, src.inWords(err)), o)
	}
	out := published{
		Source: r.Path, HashAlgo: "sha256", HashValue: hex.EncodeToString(r.SHA256[:]), Index: r.Path,
		Content: string(r.Index.Head), DiskSHA: hex.EncodeToString(r.Index.SHA256[:]), Size: r.Index.Size,
		Data: r.Index.Data(), NewBytes: r.Written, New: r.New, Chunks: len(r.Index.Chunks), Signed: len(po.Sign) > 0,
		unsigned: r.Unsigned,
	}
	out.Stored, out.Objects = r.Index.Stored()
	if oci.IsReference(o.out) {
		pushed, err := p.push(ctx, ref, dir, po.Name, out.Stored, o.quiet)
		if err != nil {
			return err
		}
		out.Source, out.Index, out.New, out.NewBytes = pushed.Ref.String(), "", pushed.New, pushed.Written
	}
	out.Seconds = time.Since(start).Seconds()
	return p.showPublished(out)
}

func (p *program) showPublished(r published) error {
	if p.values() {
		return p.print(r)
	}
	source, url := r.Source, r.Source
	if r.Index != "" {
		url = "https://SERVER/" + filepath.Base(r.Index)
		source = "the URL of " + r.Index + " where the folder is served"
	}
	signed := "no"
	switch {
	case r.Signed:
		signed = "yes"
	case r.unsigned:
		signed = "no: the signature of the image that was there is removed, and nodes with image_keys refuse this one"
	}
	return p.sheet([][2]string{
		{"image_source", source},
		{"image_os_hash_algo", r.HashAlgo},
		{"image_os_hash_value", r.HashValue},
		{"to deploy it",
			fmt.Sprintf("ingot node deploy NODE --image %s --checksum %s:%s", url, r.HashAlgo, r.HashValue)},
		{"content", "a disk with " + r.Content},
		{"disk", size(uint64(r.Size)) + " in " + fmt.Sprint(r.Chunks) + " chunks, " + size(uint64(r.Data)) +
			" of data"},
		{"stored", fmt.Sprintf("%s in %d objects", size(uint64(r.Stored)), r.Objects)},
		{"signed", signed},
		{"new", fmt.Sprintf("%s in %d objects", size(uint64(r.NewBytes)), r.New)},
		{"took", span(time.Duration(r.Seconds * float64(time.Second)))},
	})
}

// bigTemp makes a temporary folder on a disk with space: /tmp is memory on many systems. It holds as much as an image,
// so that one which a killed publication has left is removed by the next.
func (p *program) bigTemp() (dir string, free func(), err error) {
	parent := cmp.Or(p.getenv("TMPDIR"), "/var/tmp")
	const prefix = "ingot-publish-"
	left, _ := os.ReadDir(parent) // what is wrong with it shows below
	for _, e := range left {
		// A folder is locked a moment after it was made.
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), prefix) || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		old := filepath.Join(parent, e.Name())
		if f, err := lockFolder(old); err == nil {
			_ = os.RemoveAll(old) // the next one does else
			_ = f.Close()
		}
	}
	if dir, err = os.MkdirTemp(parent, prefix); err != nil {
		return "", nil, err
	}
	f, err := lockFolder(dir) // as long as this program lives
	if err != nil {
		return dir, func() { _ = os.RemoveAll(dir) }, nil // no other program can lock it, and remove it then
	}
	return dir, func() { _ = os.RemoveAll(dir); _ = f.Close() }, nil
}

// lockFolder opens and locks a folder that no other program has locked.
func lockFolder(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// registry gives the options for registries: docker's credentials, and retries.
func (p *program) registry() (oci.Options, error) {
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return oci.Options{}, fmt.Errorf("read docker's configuration: %w", err)
	}
	get := credentials.Credential(store)
	return oci.Options{
		Client: retry.NewClient(), Login: func(ctx context.Context, host string) (oci.Credential, error) {
			c, err := get(ctx, host)
			return oci.Credential{User: c.Username, Password: c.Password, Refresh: c.RefreshToken}, err
		}}, nil
}

// push sends what is in a folder to a registry.
func (p *program) push(ctx context.Context, ref oci.Reference, dir publish.Dir, name string, total int64,
	quiet bool) (*oci.Pushed, error) {
	o, err := p.registry()
	if err != nil {
		return nil, err
	}
	u := oci.Upload{Name: name, Signatures: map[string][]byte{}, Object: dir.Object}
	file := filepath.Join(string(dir), name+index.Suffix)
	if u.Index, err = os.ReadFile(file); err != nil {
		return nil, err
	}
	for _, suffix := range index.SignatureSuffixes {
		if b, err := os.ReadFile(file + suffix); err == nil {
			u.Signatures[suffix] = b
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	var m publish.Meter
	u.Done = &m.Done
	show := p.meter("push", quiet, func() (int64, int64) { return m.Done.Load(), total })
	defer show()
	return oci.Push(ctx, ref, u, o)
}

// signers reads the keys to sign with.
func (p *program) signers(o publishOptions) ([]publish.Signer, error) {
	var all []publish.Signer
	for _, k := range []struct {
		file string
		read func([]byte, func() (string, error)) (publish.Signer, error)
	}{{o.signKey, publish.Minisign}, {o.cosignKey, publish.Cosign}} {
		if k.file == "" {
			continue
		}
		b, err := os.ReadFile(k.file)
		if err != nil {
			return nil, fmt.Errorf("read the key to sign with: %w", err)
		}
		s, err := k.read(b, func() (string, error) { return p.password(o.passwordFile, k.file) })
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", k.file, err)
		}
		all = append(all, s)
	}
	return all, nil
}

// password finds out the password of a key.
func (p *program) password(file, key string) (string, error) {
	if file != "" {
		b, err := os.ReadFile(file)
		return strings.TrimRight(string(b), "\r\n"), err
	}
	if s := p.getenv(keyPassword); s != "" {
		return s, nil
	}
	answer, ok, err := p.ask(fmt.Sprintf("Password of %s: ", key))
	if !ok {
		return "", usage("the key %s has a password: give it by --password-file or $%s", key, keyPassword)
	}
	return answer, err
}

// meter shows how far a transfer is until the function that it gives is called.
func (p *program) meter(what string, quiet bool, look func() (done, total int64)) (end func()) {
	if quiet {
		return func() {}
	}
	d := newDisplay(p.stderr)
	return d.every(250*time.Millisecond, func() {
		done, total := look()
		t := rest.Transfer{Bytes: uint64(done), Total: uint64(total)}
		if s := d.now().Sub(d.start).Seconds(); s > 0 {
			t.Rate = uint64(float64(done) / s)
		}
		text := d.transfer(what, &t)
		d.redraw(text)
		if !d.live && total > 0 && d.now().Sub(d.start) > time.Second {
			d.report(&t, text)
		}
	})
}
