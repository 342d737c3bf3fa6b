module github.com/ingot-metal/ingot

go 1.26.0

require (
	aead.dev/minisign v0.3.0 // signatures of published images
	github.com/bougou/go-ipmi v0.9.1 // IPMI client of the conductor, and the BMC of the virtual rack
	github.com/chromedp/cdproto v0.159.0 // of chromedp: the browser's protocol
	github.com/chromedp/chromedp v0.23.0 // tests: drives Chromium
	github.com/diskfs/go-diskfs v1.9.4 // an independent reader of tables and file systems that tests compare with
	github.com/dustin/go-humanize v1.1.0 // sizes for people
	github.com/go-sql-driver/mysql v1.10.0 // reads the database of an Ironic that is moved from
	github.com/google/go-cmp v0.7.0 // differences in tests
	github.com/google/nftables v0.3.0 // the firewall's chains, for the doctor
	github.com/google/uuid v1.6.0 // UUIDs
	github.com/hanwen/go-fuse/v2 v2.12.1 // the file system under the paced disk of the bench
	github.com/insomniacslk/dhcp v0.0.0-20260901064844-234b97448fae // DHCP packets, server and client
	github.com/jackc/pgx/v5 v5.12.0 // PostgreSQL, for the store
	github.com/jaypipes/ghw v0.26.0 // inventory of CPUs and memory, maker and BIOS
	github.com/klauspost/compress v1.20.3 // zstd and gzip
	github.com/mikelolasagasti/xz v1.0.1 // unpacks images in xz: half again as fast as ulikunitz/xz, with a bound for its memory
	github.com/opencontainers/go-digest v1.0.0 // of oras-go: digests in its interface
	github.com/opencontainers/image-spec v1.1.1 // of oras-go: manifests
	github.com/pb33f/libopenapi v0.28.1 // tests: an independent reader of the API's description
	github.com/pb33f/libopenapi-validator v0.9.0 // tests: OpenAPI's own schema
	github.com/pierrec/lz4/v4 v4.1.29 // unpacks images in lz4
	github.com/pin/tftp/v3 v3.2.0 // TFTP server
	github.com/pressly/goose/v3 v3.28.0 // migrations of the store
	github.com/prometheus/client_golang v1.24.0 // metrics
	github.com/prometheus/common v0.70.0 // their text format
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.2 // tests: holds answers of the API against their schemas
	github.com/scrapli/scrapligo v1.4.3 // terminals of switches
	github.com/spf13/cobra v1.10.2 // command line
	github.com/stmcginnis/gofish v0.24.0 // Redfish: types and requests of the standard
	github.com/u-root/u-root v0.16.0 // cpio archives, kernel modules, mounts, kexec, firmware variables
	github.com/ulikunitz/xz v0.5.15 // Debian packages
	github.com/vishvananda/netlink v1.3.0 // links and addresses
	github.com/zeebo/blake3 v0.2.4 // digests of images; the fastest with AVX2
	go.opentelemetry.io/otel v1.46.0 // traces
	go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp v1.46.0 // sends them to a collector
	go.opentelemetry.io/otel/sdk v1.46.0 // their queue and sampling
	go.opentelemetry.io/otel/trace v1.46.0 // their IDs
	go.opentelemetry.io/proto/otlp v1.11.0 // tests: what a collector is sent
	golang.org/x/crypto v0.57.0 // secret keys of cosign, passwords of users of the API, the ssh server of rescue
	golang.org/x/net v0.60.0 // ICMPv6 for router advertisements
	golang.org/x/sync v0.23.0 // errgroup
	golang.org/x/sys v0.48.0 // system calls
	golang.org/x/term v0.46.0 // terminals
	google.golang.org/grpc v1.85.0 // session between agent and conductor
	google.golang.org/protobuf v1.36.12 // its messages
	gopkg.in/yaml.v3 v3.0.1 // configuration file
	modernc.org/sqlite v1.60.1 // store, without cgo
	oras.land/oras-go/v2 v2.6.0 // OCI registries
)

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/gophercloud/gophercloud/v2 v2.15.0
	github.com/hashicorp/mdns v1.0.7
	github.com/prometheus/client_model v0.6.2
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/BurntSushi/toml v1.4.1-0.20240526193622-a339e1f7089c // indirect
	github.com/bahlo/generic-list-go v0.2.0 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/buger/jsonparser v1.1.1 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/creack/pty v1.1.24 // indirect
	github.com/djherbis/times v1.6.0 // indirect
	github.com/elliotwutingfeng/asciiset v0.0.0-20260129054604-cfde2086bc57 // indirect
	github.com/fatih/color v1.15.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/go-ole/go-ole v1.3.0 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.30.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/jaypipes/pcidb v1.1.1 // indirect
	github.com/josharian/native v1.1.0 // indirect
	github.com/klauspost/cpuid/v2 v2.0.12 // indirect
	github.com/klauspost/pgzip v1.2.6 // indirect
	github.com/kr/pretty v0.3.1 // indirect
	github.com/kr/text v0.2.0 // indirect
	github.com/mattn/go-colorable v0.1.13 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/mattn/go-runewidth v0.0.16 // indirect
	github.com/mdlayher/netlink v1.7.3-0.20250113171957-fbb4dce95f42 // indirect
	github.com/mdlayher/packet v1.1.2 // indirect
	github.com/mdlayher/socket v0.5.1 // indirect
	github.com/mfridman/interpolate v0.0.2 // indirect
	github.com/miekg/dns v1.1.72 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/ncruces/go-strftime v1.0.0 // indirect
	github.com/olekukonko/errors v1.1.0 // indirect
	github.com/olekukonko/ll v0.0.9 // indirect
	github.com/olekukonko/tablewriter v1.0.9 // indirect
	github.com/pb33f/jsonpath v0.1.2 // indirect
	github.com/pb33f/ordered-map/v2 v2.3.0 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	github.com/rivo/uniseg v0.4.4 // indirect
	github.com/rogpeppe/go-internal v1.14.1 // indirect
	github.com/sethvargo/go-retry v0.4.0 // indirect
	github.com/sirikothe/gotextfsm v1.0.1-0.20200816110946-6aa2cfd355e4 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	github.com/u-root/uio v0.0.0-20240224005618-d2acac8f3701 // indirect
	github.com/vishvananda/netns v0.0.4 // indirect
	github.com/yusufpapurcu/wmi v1.2.4 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlptrace v1.46.0 // indirect
	go.opentelemetry.io/otel/metric v1.46.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.yaml.in/yaml/v4 v4.0.0-rc.2 // indirect
	golang.org/x/exp v0.0.0-20260824195058-e88cd73687aa // indirect
	golang.org/x/exp/typeparams v0.0.0-20231108232855-2478ac86f678 // indirect
	golang.org/x/mod v0.41.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	golang.org/x/tools v0.51.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260819154853-08b0e4226688 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260831171406-18b4a7587f8a // indirect
	google.golang.org/grpc/cmd/protoc-gen-go-grpc v1.6.2 // indirect
	gopkg.in/yaml.v2 v2.4.0 // indirect
	honnef.co/go/tools v0.8.2 // indirect
	howett.net/plist v1.0.2-0.20250314012144-ee69052608d9 // indirect
	modernc.org/libc v1.77.1 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
)

tool (
	google.golang.org/grpc/cmd/protoc-gen-go-grpc
	google.golang.org/protobuf/cmd/protoc-gen-go
	honnef.co/go/tools/cmd/staticcheck
)
