package pid1

import (
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// randomReady reports whether the kernel returns random bytes without blocking.
func randomReady() bool {
	var b [1]byte
	_, err := unix.Getrandom(b[:], unix.GRND_NONBLOCK)
	return !errors.Is(err, unix.EAGAIN)
}

// seedRandom makes the kernel's random numbers available if the machine has neither RDRAND nor a driver that fills the
// pool, and returns the source. Blocking would be worse: the first key or DHCP transaction would wait for minutes. The
// kernel has already used the firmware's seed under UEFI.
func seedRandom() (source string, err error) {
	h := sha512.New()
	var from []string
	for _, f := range []struct {
		name string
		read func(io.Writer) error
	}{
		{"TPM", tpmRandom},
		{"hardware generator", func(w io.Writer) error { return copyDevice(w, "/dev/hwrng", 64) }},
	} {
		if f.read(h) == nil {
			from = append(from, f.name)
		}
	}
	mixIdentity(h)
	jitter(h, 32)
	from = append(from, "timing jitter")
	if err := creditEntropy(h.Sum(nil)); err != nil {
		return "", err
	}
	return strings.Join(from, ", "), nil
}

// creditEntropy gives the kernel a seed, credited with 256 bits.
func creditEntropy(seed []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("seed the kernel's random numbers: %w", err)
	}
	defer f.Close()
	buf := make([]byte, 8+len(seed)) // struct rand_pool_info
	binary.NativeEndian.PutUint32(buf, 256)
	binary.NativeEndian.PutUint32(buf[4:], uint32(len(seed)))
	copy(buf[8:], seed)
	_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&buf[0])))
	if e != 0 {
		return fmt.Errorf("seed the kernel's random numbers: %w", e)
	}
	return nil
}

// mixIdentity adds data that differs between machines; an attacker may know it, so it is not credited.
func mixIdentity(w io.Writer) {
	files := []string{"/sys/class/dmi/id/product_uuid", "/sys/class/dmi/id/product_serial", "/sys/class/rtc/rtc0/time",
		"/proc/interrupts", "/proc/stat"}
	nics, _ := filepath.Glob("/sys/class/net/*/address")
	for _, f := range append(files, nics...) {
		if b, err := os.ReadFile(f); err == nil {
			_, _ = w.Write(b)
		}
	}
	_ = binary.Write(w, binary.LittleEndian, time.Now().UnixNano())
}

// jitter adds the durations of memory accesses and system calls in nanoseconds, in rounds of a thousand: caches,
// interrupts and the clocks of memory and processor make the low bits unpredictable.
func jitter(w io.Writer, rounds int) {
	mem := make([]byte, 1<<20)
	var sample [8]byte
	at := uint64(0)
	for range rounds {
		for range 1000 {
			begin := time.Now()
			at = at*6364136223846793005 + 1442695040888963407 + uint64(mem[at>>44])
			mem[at>>44]++
			unix.Getppid()
			at += uint64(time.Since(begin))
			binary.LittleEndian.PutUint64(sample[:], uint64(time.Since(begin))^at)
			_, _ = w.Write(sample[:])
		}
	}
}

// tpmRandom reads random bytes from a TPM 2.0: TPM2_GetRandom, TPM 2.0 Library part 3, section 16.1.
func tpmRandom(w io.Writer) error {
	f, err := os.OpenFile("/dev/tpm0", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	ask := []byte{0x80, 0x01, 0, 0, 0, 12, 0, 0, 0x01, 0x7b, 0, 32}
	if _, err := f.Write(ask); err != nil {
		return err
	}
	answer := make([]byte, 64)
	n, err := f.Read(answer)
	if err != nil {
		return err
	}
	if n < 28 || binary.BigEndian.Uint32(answer[6:]) != 0 {
		return fmt.Errorf("the TPM refused: %x", answer[:n])
	}
	_, err = w.Write(answer[12:n])
	return err
}

func copyDevice(w io.Writer, device string, n int64) error {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := unix.Read(int(f.Fd()), b); err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}
