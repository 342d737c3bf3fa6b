// Package erasure signs the reports of erased disks that agents send, and verifies them, offline too.
//
// A signed report is a JSON document: a statement (which node, when the report arrived, the agent's report unchanged),
// and an Ed25519 signature over it. The signature covers the statement as encoding/json writes it without white space,
// so that a document may be indented and stays valid. The key is made at the first start, beside the conductor's CA;
// its public half is for the verifier. A document carries the public key, which shows that it was not changed by
// accident; only a key from another source shows who signed it.
package erasure

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
)

// Format names the documents, and their version.
const Format = "ingot-signed-erasure-1"

// Names of the key's files in the data directory: the key, and its public half.
const (
	KeyFile    = "erasure.key"
	PublicFile = "erasure.pub"
)

// Key is the conductor's key.
type Key struct {
	private ed25519.PrivateKey
}

// OpenKey reads the key in dir, or makes one when there is none.
func OpenKey(dir string) (*Key, error) {
	file := filepath.Join(dir, KeyFile)
	b, err := keyfile.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read the key of erasures: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("read the key of erasures: %s is not a PEM file", file)
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the key of erasures in %s: %w", file, err)
	}
	private, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("read the key of erasures: %s holds a %T, want an Ed25519 key", file, k)
	}
	key := &Key{private}
	public := filepath.Join(dir, PublicFile)
	if old, err := os.ReadFile(public); err == nil && bytes.Equal(old, key.PEM()) {
		return key, nil
	}
	return key, keyfile.Write(public, key.PEM(), 0o644) // a first start was cut short between the two
}

func makeKey(dir string) (*Key, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of erasures: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("make the key of erasures: %w", err)
	}
	if err := keyfile.Write(filepath.Join(dir, KeyFile),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return nil, fmt.Errorf("write the key of erasures: %w", err)
	}
	key := &Key{private}
	return key, keyfile.Write(filepath.Join(dir, PublicFile), key.PEM(), 0o644)
}

// PEM is the public key, as ParseKey reads it.
func (k *Key) PEM() []byte {
	der, err := x509.MarshalPKIXPublicKey(k.private.Public())
	if err != nil {
		panic(err) // an Ed25519 key always has this form
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// ParseKey reads a public key.
func ParseKey(text []byte) (ed25519.PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("the key is not a PEM file: give the conductor's " + PublicFile)
	}
	k, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	public, ok := k.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("read the key: it is a %T, want an Ed25519 key", k)
	}
	return public, nil
}

// KeyID is a short name of a public key.
func KeyID(k ed25519.PublicKey) string {
	sum := sha256.Sum256(k)
	return hex.EncodeToString(sum[:8])
}

// Statement is the signed part of a document.
type Statement struct {
	NodeUUID  string          `json:"node_uuid"`
	NodeName  string          `json:"node_name"`
	Conductor string          `json:"conductor"`
	Received  time.Time       `json:"received"`
	Report    json.RawMessage `json:"report"`
}

// Document is a signed report.
type Document struct {
	Format    string          `json:"format"`
	Statement json.RawMessage `json:"statement"`
	KeyID     string          `json:"key_id"`
	PublicKey []byte          `json:"public_key"`
	Signature []byte          `json:"signature"`
}

// signed is the form in which a statement is signed: without white space.
func signed(statement json.RawMessage) ([]byte, error) {
	b, err := json.Marshal(statement)
	if err != nil {
		return nil, err
	}
	return append([]byte(Format+"\n"), b...), nil
}

// Sign makes a document of a statement.
func (k *Key) Sign(s Statement) ([]byte, error) {
	statement, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("sign an erasure: %w", err)
	}
	text, err := signed(statement)
	if err != nil {
		return nil, fmt.Errorf("sign an erasure: %w", err)
	}
	public := k.private.Public().(ed25519.PublicKey)
	return json.Marshal(Document{Format: Format, Statement: statement, KeyID: KeyID(public), PublicKey: public,
		Signature: ed25519.Sign(k.private, text)})
}

// Report is the part of a report that is checked here.
type Report struct {
	Format string `json:"format"`
	ID     string `json:"id"`
	Step   string `json:"step"`
	Disk   struct {
		Name     string `json:"name"`
		Serial   string `json:"serial"`
		WWN      string `json:"wwn"`
		Model    string `json:"model"`
		Firmware string `json:"firmware"`
		Size     int64  `json:"size"`
	} `json:"disk"`
	Method   string    `json:"method"`
	Level    string    `json:"level"`
	Answer   string    `json:"answer"`
	Result   string    `json:"result"`
	Error    string    `json:"error"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	Samples  struct {
		Size    int     `json:"size"`
		Markers int     `json:"markers"`
		Old     int     `json:"old"`
		Read    int     `json:"read"`
		Kept    []int64 `json:"kept"`
		All     bool    `json:"all"`
	} `json:"samples"`
}

// Verified is a document whose signature is right.
type Verified struct {
	Statement Statement
	Report    Report
	KeyID     string
	Known     bool // the key is one that was given, not only the document's own
}

// ErrSignature means that a document was changed after signing, or was signed by another key.
var ErrSignature = errors.New("the signature does not fit")

// Verify checks a document against a public key; nil takes the document's own, which shows no more than that it was not
// changed by accident.
func Verify(document []byte, key ed25519.PublicKey) (*Verified, error) {
	var d Document
	if err := json.Unmarshal(document, &d); err != nil {
		return nil, fmt.Errorf("not a signed report of an erasure: %w", err)
	}
	if d.Format != Format {
		return nil, fmt.Errorf("not a signed report of an erasure: its format is %q, not %s", d.Format, Format)
	}
	v := &Verified{Known: key != nil}
	if key == nil {
		if len(d.PublicKey) != ed25519.PublicKeySize {
			return nil, errors.New("not a signed report of an erasure: it has no public key")
		}
		key = d.PublicKey
	}
	v.KeyID = KeyID(key)
	text, err := signed(d.Statement)
	if err != nil {
		return nil, fmt.Errorf("not a signed report of an erasure: %w", err)
	}
	if !ed25519.Verify(key, text, d.Signature) {
		if v.Known && !bytes.Equal(d.PublicKey, key) {
			return nil, fmt.Errorf("%w: it was signed by key %s, not by %s", ErrSignature, d.KeyID, v.KeyID)
		}
		return nil, fmt.Errorf("%w: the report was changed after it was signed", ErrSignature)
	}
	if err := json.Unmarshal(d.Statement, &v.Statement); err != nil {
		return nil, fmt.Errorf("read the signed statement: %w", err)
	}
	if err := json.Unmarshal(v.Statement.Report, &v.Report); err != nil {
		return nil, fmt.Errorf("read the signed report: %w", err)
	}
	return v, nil
}

// Kept is a document as it is kept with a node.
type Kept struct {
	ID       string // of the report
	NodeUUID string
	At       time.Time
	Document []byte
}

// reportStore is the part of the store that erasure needs.
type reportStore interface {
	KeepErasure(ctx context.Context, k Kept) error
}

// Book signs reports as they arrive, and keeps them.
type Book struct {
	Key       *Key
	Store     reportStore
	Conductor string
	Now       func() time.Time // nil is time.Now
}

// maxReports bounds what one result may bring: more disks than a machine has.
const maxReports = 4096

// Take signs and keeps the reports in the result of a step, if there are any. Taken twice, they are kept once.
func (b *Book) Take(ctx context.Context, nodeUUID, nodeName string, result []byte) error {
	if !bytes.Contains(result, []byte(`"erasures"`)) {
		return nil
	}
	var r struct {
		Erasures []json.RawMessage `json:"erasures"`
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return nil // a result of another kind
	}
	now := time.Now
	if b.Now != nil {
		now = b.Now
	}
	for _, raw := range r.Erasures[:min(len(r.Erasures), maxReports)] {
		var report Report
		if err := json.Unmarshal(raw, &report); err != nil || report.ID == "" {
			continue // nothing of ours
		}
		at := now().UTC()
		doc, err := b.Key.Sign(Statement{NodeUUID: nodeUUID, NodeName: nodeName, Conductor: b.Conductor, Received: at,
			Report: raw})
		if err != nil {
			return err
		}
		// An agent chooses its reports' names; those of another node's must not be taken for them.
		id := sha256.Sum256([]byte(nodeUUID + "\n" + report.ID))
		if err := b.Store.KeepErasure(ctx,
			Kept{ID: hex.EncodeToString(id[:16]), NodeUUID: nodeUUID, At: at, Document: doc}); err != nil {
			return fmt.Errorf("keep the report of an erasure: %w", err)
		}
	}
	return nil
}
