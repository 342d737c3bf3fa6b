package swarm

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/ingot-metal/ingot/images/index"
)

// Two agents use TLS 1.3, and inside it one request at a time:
//
//	request: image (32 bytes), chunk (4, big-endian)
//	answer:  status (1), encoding (1), length (4), then as many bytes
//
// An answer is never longer than its request allows; a peer that violates this is excluded.

// protocol is the name agreed on in the TLS handshake.
const protocol = "ingot-swarm/1"

type status byte

const (
	statusOK      status = 0
	statusBusy    status = 1 // try again soon
	statusMissing status = 2 // no such chunk here
)

type encoding byte

const (
	published encoding = 1 // the bytes of the published object
	repacked  encoding = 2 // a zstd frame made by the sender: only its content can be verified
)

type request struct {
	image Image
	chunk uint32
}

type answer struct {
	status   status
	encoding encoding
	length   uint32
}

const (
	requestSize = 32 + 4
	answerSize  = 1 + 1 + 4
)

// maxPacked is the maximum length of a packed chunk.
const maxPacked = index.MaxStored

func (r request) bytes() []byte {
	b := make([]byte, 0, requestSize)
	b = append(b, r.image[:]...)
	return binary.BigEndian.AppendUint32(b, r.chunk)
}

func readRequest(rd io.Reader) (request, error) {
	var b [requestSize]byte
	if _, err := io.ReadFull(rd, b[:]); err != nil {
		return request{}, err
	}
	return request{Image(b[:32]), binary.BigEndian.Uint32(b[32:])}, nil
}

func (a answer) bytes() []byte {
	b := make([]byte, 0, answerSize)
	b = append(b, byte(a.status), byte(a.encoding))
	return binary.BigEndian.AppendUint32(b, a.length)
}

// errNonsense means that a neighbour violates the protocol: it is broken or hostile.
type errNonsense struct{ what string }

func (e errNonsense) Error() string { return e.what }

// readAnswer reads the header of an answer. want is the length of the published chunk.
func readAnswer(rd io.Reader, want int64) (answer, error) {
	var b [answerSize]byte
	if _, err := io.ReadFull(rd, b[:]); err != nil {
		return answer{}, err
	}
	a := answer{status(b[0]), encoding(b[1]), binary.BigEndian.Uint32(b[2:])}
	switch {
	case a.status == statusBusy && a.length == 0, a.status == statusMissing && a.length == 0:
	case a.status == statusOK && a.encoding == published && int64(a.length) == want:
	case a.status == statusOK && a.encoding == repacked && a.length > 0 && a.length <= maxPacked:
	default:
		return a, errNonsense{
			fmt.Sprintf("it answered with status %d, encoding %d and %d bytes", a.status, a.encoding, a.length)}
	}
	return a, nil
}
