package images

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/ingot-metal/ingot/images/blkid"
	"github.com/ingot-metal/ingot/images/gpt"
)

// Compression of an image file.
type Compression string

// Detected compressions.
const (
	Plain Compression = ""
	Zstd  Compression = "zstd"
	Gzip  Compression = "gzip"
	XZ    Compression = "xz"
	LZ4   Compression = "lz4"
	Bzip2 Compression = "bzip2"
)

// Format of an image file.
type Format string

// Detected formats.
const (
	Raw        Format = "raw"
	QCow2      Format = "qcow2"
	QED        Format = "qed"
	VHD        Format = "vhd"
	VHDX       Format = "vhdx"
	VMDK       Format = "vmdk"
	VDI        Format = "vdi"
	Parallels  Format = "parallels"
	LUKS       Format = "luks"
	ISO9660    Format = "iso9660"
	Published  Format = "published"        // the index of a published image: package images/index
	FileSystem Format = "bare file system" // raw, but of a partition
	NotAnImage Format = "none"
)

// Content is the content of the beginning of a disk, in words: "GPT", "MBR", "an ext4 file system", "an HTML page", ...
type Content string

// Contents that a system can boot from.
const (
	GPT Content = "GPT"
	MBR Content = "MBR"
)

func (c Content) remedy() string {
	switch c {
	case htmlPage, xmlText, jsonText, plainText:
		return "check the URL: the server answered with a message instead of an image"
	case zeros:
		return "check the image: its beginning is empty"
	}
	return "check the URL: it must lead to a whole-disk image"
}

const (
	htmlPage  Content = "it is an HTML page"
	xmlText   Content = "it is an XML document"
	jsonText  Content = "it is a JSON document"
	plainText Content = "it is a text"
	zeros     Content = "it begins with zeros, without a partition table"
	unknown   Content = "it has no partition table and is in no known format"
)

// magic is a byte sequence at an offset.
type magic struct {
	off  int
	want string
}

func (m magic) in(head []byte) bool {
	return len(head) >= m.off+len(m.want) && string(head[m.off:m.off+len(m.want)]) == m.want
}

var compressions = []struct {
	magic
	is Compression
}{
	{magic{0, "\x28\xb5\x2f\xfd"}, Zstd},
	{magic{0, "\x1f\x8b\x08"}, Gzip},
	{magic{0, "\xfd7zXZ\x00"}, XZ},
	{magic{0, "\x04\x22\x4d\x18"}, LZ4},
	{magic{0, "\x02\x21\x4c\x18"}, LZ4}, // legacy frames
	{magic{0, "BZh"}, Bzip2},
}

// DetectCompression returns the compression of an image file, by its first bytes.
func DetectCompression(head []byte) Compression {
	for _, c := range compressions {
		if c.in(head) {
			return c.is
		}
	}
	// A leading skippable frame: parallel and seekable zstd begin so. (LZ4 could too, but no tool does that.)
	if len(head) >= 4 && head[0]&0xf0 == 0x50 && string(head[1:4]) == "\x2a\x4d\x18" {
		return Zstd
	}
	return Plain
}

var diskFormats = []struct {
	magic
	is Format
}{
	{magic{0, "QFI\xfb"}, QCow2},
	{magic{0, "\x89INGOT\r\n"}, Published},
	{magic{0, "QED\x00"}, QED},
	{magic{0, "conectix"}, VHD}, // dynamic; a fixed one has it only at its end
	{magic{0, "vhdxfile"}, VHDX},
	{magic{0, "KDMV"}, VMDK},
	{magic{0, "COWD"}, VMDK},
	{magic{0, "# Disk DescriptorFile"}, VMDK},
	{magic{0x40, "\x7f\x10\xda\xbe"}, VDI},
	{magic{0, "WithoutFreeSpace"}, Parallels},
	{magic{0, "WithouFreSpacExt"}, Parallels},
}

var otherFiles = []struct {
	magic
	is Content
}{
	{magic{0, "PK\x03\x04"}, "it is a ZIP archive"},
	{magic{257, "ustar"}, "it is a tar archive"},
	{magic{0, "070701"}, "it is a cpio archive"},
	{magic{0, "\x7fELF"}, "it is an ELF program"},
	{magic{0, "!<arch>\n"}, "it is a Debian package or ar archive"},
	{magic{0, "version https://git-lfs"}, "it is a Git LFS pointer instead of the file"},
	{magic{0, "7z\xbc\xaf\x27\x1c"}, "it is a 7z archive"},
	{magic{0, "%PDF"}, "it is a PDF document"},
}

// Detect returns the format of an image by its beginning, of which the first 68 KiB are enough, and the content of the
// beginning of the disk if it is raw.
func Detect(head []byte) (Format, Content) {
	for _, f := range diskFormats {
		if f.in(head) {
			return f.is, ""
		}
	}
	kind := blkid.Detect(head)
	switch {
	case kind == blkid.LUKS:
		return LUKS, ""
	case gpt.SectorSize(head) != 0:
		return Raw, GPT
	case blkid.HasBootSignature(head) && plausibleMBR(head):
		return Raw, MBR
	case kind == blkid.ISO9660:
		return ISO9660, Content(kind.Description())
	case kind != "":
		return FileSystem, Content(kind.Description())
	}
	for _, f := range otherFiles {
		if f.in(head) {
			return NotAnImage, f.is
		}
	}
	return NotAnImage, describe(head)
}

// plausibleMBR distinguishes a partition table from the boot sector of a bare file system, which ends in 55 AA as well.
func plausibleMBR(head []byte) bool {
	used := false
	for i := range 4 {
		e := head[446+16*i:][:16]
		if e[0]&0x7f != 0 {
			return false
		}
		used = used || e[4] != 0
	}
	return used
}

// describe names the content of a file that is no image.
func describe(head []byte) Content {
	text := bytes.TrimLeft(bytes.TrimPrefix(head[:min(len(head), 1024)], []byte("\xef\xbb\xbf")), " \t\r\n")
	lower := bytes.ToLower(text[:min(len(text), 256)])
	for _, s := range []string{"<!doctype html", "<html", "<head", "<body", "<title", "<script"} {
		if bytes.HasPrefix(lower, []byte(s)) {
			return htmlPage
		}
	}
	switch {
	case bytes.HasPrefix(lower, []byte("<?xml")) && bytes.Contains(lower, []byte("html")):
		return htmlPage
	case bytes.HasPrefix(lower, []byte("<?xml")), bytes.HasPrefix(lower, []byte("<error")):
		return xmlText
	case len(bytes.Trim(head, "\x00")) == 0:
		return zeros
	case !isText(text):
		return unknown
	case text[0] == '{' || text[0] == '[':
		return jsonText
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return plainText + Content(fmt.Sprintf(" that begins with %q", line[:min(len(line), 60)]))
}

func isText(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 && len(b) >= utf8.UTFMax || r < ' ' && r != '\n' && r != '\r' && r != '\t' ||
			r == 0x7f {
			return false
		}
		b = b[n:]
	}
	return true
}
