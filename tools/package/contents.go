package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
)

const maintainer = "The Ingot authors <ingot-metal@users.noreply.github.com>"

// entry is a file of a package, with its path there and where it comes from.
type entry struct {
	to, from string
	mode     fs.FileMode // 0: 0644
	kind     string      // nfpm's type; empty: a plain file
	only     string      // deb or rpm; empty: both
	owner    string      // and group, which only rpm knows when it unpacks; empty: root
}

// text is a file in the folder files.
func (b *build) text(name string) string { return filepath.Join(b.source, "tools/package/files", name) }

// server are the files of the package ingotd.
func (b *build) server(arch string) []entry {
	return []entry{
		{to: "/usr/bin/ingotd", from: b.file(arch, "ingotd"), mode: 0o755},
		// rpm makes the user before it unpacks, deb after that, and sets these owners in its postinst.
		{to: "/etc/ingot", kind: files.TypeDir, mode: 0o755, only: "deb"},
		{to: "/etc/ingot/ingotd.yaml", from: b.text("ingotd.yaml"), kind: files.TypeConfigNoReplace, only: "deb"},
		{to: "/etc/ingot", kind: files.TypeDir, mode: 0o750, owner: "root:ingot", only: "rpm"},
		{to: "/etc/ingot/ingotd.yaml", from: b.text("ingotd.yaml"), mode: 0o640, kind: files.TypeConfigNoReplace,
			owner: "root:ingot", only: "rpm"},
		{to: "/var/lib/ingot", kind: files.TypeDir, mode: 0o700, owner: "ingot:ingot", only: "rpm"},
		{to: "/lib/systemd/system/ingotd.service", from: b.text("ingotd.service"), only: "deb"},
		{to: "/lib/systemd/system/ingotd.socket", from: b.text("ingotd.socket"), only: "deb"},
		{to: "/usr/lib/systemd/system/ingotd.service", from: b.text("ingotd.service"), only: "rpm"},
		{to: "/usr/lib/systemd/system/ingotd.socket", from: b.text("ingotd.socket"), only: "rpm"},
		{to: "/usr/share/doc/ingotd/ingotd.example.yaml", from: b.file("ingotd.example.yaml")},
	}
}

// client are the files of the package ingot.
func (b *build) client(arch string) []entry {
	return []entry{
		{to: "/usr/bin/ingot", from: b.file(arch, "ingot"), mode: 0o755},
		{to: "/usr/share/bash-completion/completions/ingot", from: b.file("ingot.bash")},
		{to: "/usr/share/zsh/vendor-completions/_ingot", from: b.file("ingot.zsh"), only: "deb"},
		{to: "/usr/share/zsh/site-functions/_ingot", from: b.file("ingot.zsh"), only: "rpm"},
		{to: "/usr/share/fish/vendor_completions.d/ingot.fish", from: b.file("ingot.fish")},
	}
}

// pack makes the packages with programs of an architecture.
func (b *build) pack(arch string) error {
	for name, p := range map[string]struct {
		about   string
		entries []entry
		set     func(*nfpm.Info)
	}{
		"ingotd": {about: "conductor of Ingot, bare-metal provisioning with Ironic's API\n" +
			"ingotd turns machines on, boots Ingot's agent on them, keeps the record of\n" +
			"every node and serves the Bare Metal API of OpenStack Ironic.", entries: b.server(arch), set: b.scripts},
		"ingot": {about: "command line of Ingot, bare-metal provisioning with Ironic's API\n" +
			"ingot talks to a conductor (ingotd), builds the ramdisk and the images that it\n" +
			"needs, and runs a virtual lab.", entries: b.client(arch), set: func(*nfpm.Info) {}},
	} {
		entries, err := b.documents(name, p.entries)
		if err != nil {
			return err
		}
		entries = append(entries,
			entry{to: "/usr/share/doc/" + name + "/sbom.cdx.json", from: b.file(arch, name+".cdx.json")})
		entries = append(entries,
			entry{to: "/usr/share/lintian/overrides/" + name, from: b.file(name + ".overrides"), only: "deb"})
		override := "# Programs in Go have no libraries to share, and run on any distribution.\n" + name +
			": statically-linked-binary [usr/bin/" + name + "]\n"
		if err := os.WriteFile(b.file(name+".overrides"), []byte(override), 0o644); err != nil {
			return err
		}
		if err := b.write(name, arch, p.about, entries, p.set); err != nil {
			return err
		}
	}
	return nil
}

// scripts sets what only ingotd's package has: what is run when it is installed and removed, and what it needs.
func (b *build) scripts(i *nfpm.Info) {
	if i.Target == "deb" {
		i.Scripts = nfpm.Scripts{PostInstall: b.text("deb-postinst"), PreRemove: b.text("deb-prerm"),
			PostRemove: b.text("deb-postrm")}
		i.Depends, i.Recommends = []string{"adduser"}, []string{"ipxe"}
		return
	}
	i.Scripts = nfpm.Scripts{PreInstall: b.text("rpm-pre"), PostInstall: b.text("rpm-post"),
		PreRemove: b.text("rpm-preun"), PostRemove: b.text("rpm-postun")}
	i.Depends, i.Recommends = []string{"shadow-utils"}, []string{"ipxe-bootimgs"}
}

// packRamdisk makes the package of the agent's ramdisk, where one was built.
func (b *build) packRamdisk() error {
	found, err := os.ReadDir(b.ramdisk)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Printf("There is no package ingot-ramdisk, since there is no %s: run make ramdisk for it.\n", b.ramdisk)
		return nil
	}
	if err != nil {
		return err
	}
	var entries []entry
	for _, f := range found {
		if f.Type().IsRegular() {
			entries = append(entries,
				entry{to: "/usr/lib/ingot/ramdisk/" + f.Name(), from: filepath.Join(b.ramdisk, f.Name())})
		}
	}
	if entries, err = b.documents("ingot-ramdisk", entries); err != nil {
		return err
	}
	return b.write("ingot-ramdisk", "all", "ramdisk with Ingot's agent, for x86-64 servers\n"+
		"A Linux kernel and a ramdisk, in which Ingot's agent runs on the machines.\n"+
		"The conductor serves them: netboot.ramdisk_dir: /usr/lib/ingot/ramdisk", entries, func(*nfpm.Info) {})
}

// labNeeds are the packages of others that `ingot lab` runs, for deb and rpm.
var labNeeds = map[string][]string{
	"deb": {"qemu-system-x86", "ovmf", "ipxe", "ipxe-qemu", "seabios", "iproute2"},
	"rpm": {"qemu-system-x86", "edk2-ovmf", "ipxe-bootimgs-x86", "ipxe-roms-qemu", "seabios-bin", "iproute"},
}

// packLab makes the package of the virtual rack: the program is ingot, and this brings what it runs.
func (b *build) packLab() error {
	entries, err := b.documents("ingot-lab", nil)
	if err != nil {
		return err
	}
	return b.write("ingot-lab", "all", "virtual rack of Ingot, bare-metal provisioning with Ironic's API\n"+
		"What `ingot lab` needs for machines with controllers in a network namespace of\n"+
		"their own, to try Ingot without a rack. There are no files of its own in it.", entries, func(i *nfpm.Info) {
		i.Depends = append([]string{"ingot", "ingotd"}, labNeeds[i.Target]...)
	})
}

// documents adds to a package's files its manual pages, change log and licence.
func (b *build) documents(name string, entries []entry) ([]entry, error) {
	doc := "/usr/share/doc/" + name + "/"
	changes, err := os.ReadFile(filepath.Join(b.source, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	pack := map[string][]byte{doc + "CHANGELOG.md.gz": changes, doc + "changelog.gz": b.changelog(name)}
	pages, err := filepath.Glob(b.file("man", name+map[string]string{"ingotd": ".8", "ingot": "*.1"}[name]))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		pack["/usr/share/man/man"+filepath.Ext(page)[1:]+"/"+filepath.Base(page)+".gz"] = text
	}
	entries = append(entries, entry{to: doc + "copyright", from: b.text("copyright"), only: "deb"},
		entry{to: doc + "LICENSE", from: filepath.Join(b.source, "LICENSE"), only: "rpm", kind: files.TypeRPMLicense})
	for to, data := range pack {
		data, err := zipped(data)
		if err != nil {
			return nil, err
		}
		from := b.file(name + "-" + filepath.Base(to))
		if err := os.WriteFile(from, data, 0o644); err != nil {
			return nil, err
		}
		e := entry{to: to, from: from}
		if filepath.Base(to) == "changelog.gz" {
			e.only = "deb"
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// write makes the deb and the rpm of a package.
func (b *build) write(name, arch, about string, entries []entry, set func(*nfpm.Info)) error {
	for format, packager := range map[string]nfpm.Packager{"deb": deb.Default, "rpm": rpm.DefaultRPM} {
		info := &nfpm.Info{Name: name, Arch: arch, Platform: "linux", Version: b.version, VersionSchema: "none",
			Section: "admin", Maintainer: maintainer, Vendor: "Ingot", Homepage: "https://github.com/ingot-metal/ingot",
			License: "Apache-2.0", Description: about, MTime: b.when, DisableGlobbing: true, Target: format}
		info.RPM.Signature.SignFn = b.signRPM
		info.RPM.BuildHost, info.RPM.Packager = "localhost", maintainer // else the name of this machine
		if format == "deb" {
			info.License = "" // it is in the file copyright, and Debian has no such field
		}
		set(info)
		for _, e := range entries {
			if e.only != "" && e.only != format {
				continue
			}
			owner, group := "root", "root"
			if e.owner != "" {
				owner, group, _ = strings.Cut(e.owner, ":")
			}
			mode := e.mode
			if mode == 0 {
				mode = 0o644
			}
			info.Contents = append(info.Contents, &files.Content{Source: e.from, Destination: e.to, Type: e.kind,
				FileInfo: &files.ContentFileInfo{Owner: owner, Group: group, Mode: mode, MTime: b.when}})
		}
		info = nfpm.WithDefaults(info)
		if err := nfpm.Validate(info); err != nil {
			return err
		}
		if err := b.writeFile(packager, info); err != nil {
			return fmt.Errorf("write %s of %s: %w", format, name, err)
		}
	}
	return nil
}

func (b *build) writeFile(packager nfpm.Packager, info *nfpm.Info) error {
	f, err := os.Create(filepath.Join(b.out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	return errors.Join(packager.Package(info, f), f.Close())
}
