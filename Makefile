# Ingot. `make` alone lists the targets. Everything is built into bin/ (programs) and build/ (ramdisks, images, labs).

GO       ?= go
FIRMWARE ?= bios
BMC ?= ipmi
IMAGE    ?= tiny
ROUNDS   ?= 3
export CGO_ENABLED ?= 0
# Programs have it, so that they are the same wherever they are built; tests too, so that no package is compiled twice.
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS) -trimpath)

VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
# Go's tools collect their garbage less often: a fifth less processor time. Not exported: tests measure memory.
QUICK   := GOGC=400

.DEFAULT_GOAL := help
.PHONY: help deps build ramdisk images demo demo-down demo-openstack demo-openstack-down demo-under-ironic check test test-times test-names test-full test-fast fuzz lint generate generate-check bench bench-api bench-cores bench-deploy bench-fleet bench-image bench-scrape chaos demo-ha conformance dev packages pictures release clean

help: ## Show this list
	@echo 'Ingot: bare-metal provisioning. Targets:'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

deps: ## Install with apt what all targets need
	@sh tools/deps.sh build lab images test

build: ## Build ingot, ingotd and ingot-agent into bin/
	$(QUICK) $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ingot ./tools/cmd/ingot
	$(QUICK) $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ingotd ./conductor/cmd/ingotd
	$(QUICK) $(GO) build -trimpath -ldflags '$(LDFLAGS) -buildid=' -o bin/ingot-agent ./agent/cmd/ingot-agent

ramdisk: build ## Build the agent's ramdisks, lab and server profile, into build/ramdisk/
	@sh tools/deps.sh build
	bin/ingot ramdisk build --profile lab --out build/ramdisk/lab
	bin/ingot ramdisk build --profile server --out build/ramdisk/server

images: build ## Build the tiny and the Debian 12 image into build/images/
	@sh tools/deps.sh build images
	bin/ingot image build tiny --qcow2 --out build/images/tiny
	bin/ingot image build debian --qcow2 --out build/images/debian

demo: ## The main job in a virtual rack, live: power-on to a running Debian, then once more without a reboot (FIRMWARE=bios or uefi BMC=ipmi or redfish)
	@sh tools/deps.sh build lab images
	@echo 'Building ingot, ingotd and ingot-agent; the first time takes a few minutes.'
	@$(MAKE) --no-print-directory -s build
	@bin/ingot lab demo --firmware $(FIRMWARE) --bmc $(BMC)

demo-ha: ## The main job with three conductors on one PostgreSQL: one is killed, one frozen, the database restarted meanwhile (FIRMWARE=)
	@sh tools/deps.sh build lab images database
	@$(MAKE) --no-print-directory -s build
	@bin/ingot lab demo --firmware $(FIRMWARE) --bmc redfish --several

demo-down: ## End what `make demo` left running and remove it
	@if [ -x bin/ingot ] && bin/ingot lab status --name demo >/dev/null 2>&1; then bin/ingot lab down --name demo; else echo 'No demo is up.'; fi

demo-openstack: ## A real OpenStack (Keystone to Nova) beside the virtual rack: openstack server create, ssh, rescue, rebuild, delete (STAY=1 leaves it up, GUEST=tiny is quicker)
	@sh tools/deps.sh build lab images test
	$(GO) build -o bin/demo-openstack ./test/openstack/demo
	bin/demo-openstack -image $(or $(GUEST),debian) $(if $(STAY),-stay)

demo-under-ironic: ## A real Ironic (Debian's 21.4) with Ingot's ramdisk: enrol, clean, deploy raw, qcow2 and a partition image, rescue, delete (FIRMWARE=bios or uefi for one)
	@sh tools/deps.sh build lab images test
	$(GO) build -o bin/demo-under-ironic ./test/openstack/underironic
	bin/demo-under-ironic -firmware $(if $(FIRMWARE),$(FIRMWARE),bios,uefi)

demo-openstack-down: ## End what `make demo-openstack STAY=1` left running
	@if [ -x bin/demo-openstack ]; then bin/demo-openstack -down; else echo 'No demo is up.'; fi

AUTH ?= none
LISTEN ?= 127.0.0.1:6385
dev: ## ingotd with fake machines on LISTEN, in the foreground, to try clients out (AUTH=none, http_basic or keystone)
	@$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ingotd ./conductor/cmd/ingotd
	@bin/ingotd dev --auth $(AUTH) --listen $(LISTEN)

check: ## Format, vet, lint and the tests that the change against BASE can affect (BASE=commit, default upstream's main; BUDGET=10m)
	@$(GO) run ./test/affected $(if $(BASE),-base '$(BASE)') $(if $(BUDGET),-budget '$(BUDGET)')

test: ## Install what they need and run all tests
	@sh tools/deps.sh build lab images test
	@$(GO) run ./test/run

test-times: ## What the last run of the tests cost, per phase, job, package and test (UPDATE=1 writes it to test/run/costs.txt)
	@$(GO) run ./test/run $(if $(UPDATE),-update-costs,-times)

test-names: ## Compare the names of the last run's tests with those of an earlier commit (test/names)
	@$(GO) run ./test/names

test-full: ## The same tests with bigger numbers, and what takes hours
	@sh tools/deps.sh build lab images test
	@INGOT_FULL=1 $(GO) run ./test/run

test-fast: ## The tests that need neither root nor machines, nor long
	$(GO) test $$($(GO) list ./... | grep -Ev '/test/(e2e|machine|memory|compat)$$|/tools/(lab|cli|demo)$$|/(images|initramfs)/build$$|/agent/image$$|/conductor/(netboot|app|engine)$$')

FUZZTIME ?= 3s
fuzz: ## Fuzz every parser, FUZZTIME each
	@sh tools/fuzz.sh $(FUZZTIME)

lint: ## Formatting, vet, staticcheck, and the linters of tools/lint
	@$(QUICK) sh tools/lint.sh

generate: ## Make the generated Go, and the tables in docs/, again
	@sh tools/deps.sh test
	@sh tools/generate.sh

generate-check: ## Fail when generated code is not what its sources make
	@sh tools/deps.sh test
	@sh tools/generate.sh --check

chaos: build ## Three conductors on one PostgreSQL, simulated machines and clients, and faults that a seed draws (TIME=2m SEED=1); needs root
	@sh tools/deps.sh test
	$(GO) build -o bin/chaos ./test/chaos
	bin/chaos -time $(or $(TIME),2m) -seed $(or $(SEED),1) -keep build/chaos

bench: ## Benchmarks, as ratios against what one would use instead
	@sh tools/deps.sh build bench
	$(GO) test -run '^$$' -bench . -skip Cores -benchtime 5x ./agent/image
	$(GO) test -run '^$$' -bench . ./conductor/store
	$(GO) test -run '^$$' -bench BootImages -benchtime 3x ./conductor/netboot
	$(GO) test -run '^$$' -bench PowerSync -benchtime 1x ./conductor/app

bench-api: ## How fast the API is and how little it needs, against a real Ironic (some three minutes); or against an earlier commit (BASE=commit ROUNDS=5 or more)
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ingotd ./conductor/cmd/ingotd
	$(GO) build -o bin/bench-api ./test/bench/api
	bin/bench-api -ingotd bin/ingotd $(if $(BASE),-base '$(BASE)' $(if $(filter-out file,$(origin ROUNDS)),-n $(ROUNDS)),-report build)

bench-image: build ## How fast an image gets onto a disk, against what one would use instead (some ten minutes); or against an earlier commit (BASE=commit ROUNDS=5 or more)
	@sh tools/deps.sh build bench
	$(GO) build -o bin/bench ./test/bench
	$(GO) build -o bin/bench-swarm ./test/bench/swarm
	bin/bench $(if $(BASE),-base '$(BASE)' $(if $(filter-out file,$(origin ROUNDS)),-n $(ROUNDS)),-n 5 -report build/bench.json -picture build/bench.svg)

bench-cores: ## How the speed of an image write grows with the cores: this machine's, and up to 16 simulated ones (some five minutes)
	@sh tools/deps.sh build bench
	$(GO) test -run '^$$' -bench Cores -benchtime 3x -timeout 30m ./agent/image

bench-deploy: build ## An ordinary deployment against one without a reboot, on the same virtual machine (ROUNDS=3 IMAGE=tiny or debian FIRMWARE=bios or uefi)
	@sh tools/deps.sh build lab images
	$(GO) build -o bin/bench-deploy ./test/bench/deploy
	bin/bench-deploy -n $(ROUNDS) -image $(IMAGE) -firmware $(FIRMWARE) -report build/bench-deploy.json

bench-scrape: ## What a scrape of metrics takes with 100 and with 10,000 nodes (some seconds; the goal is 300 ms)
	$(GO) test -run '^$$' -bench Scrape -benchtime 10x ./test/bench/scrape

NODES ?= 100 1000
FLAT  ?= 100 1000 10000
bench-fleet: ## What ingotd needs for many machines, which are simulated (some five minutes; NODES="100 1000 10000" FLAT="100 10000" CONDUCTORS=3 ENGINE=postgres GOALS=1)
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ingotd ./conductor/cmd/ingotd
	$(GO) build -o bin/bench-fleet ./test/bench/fleet
	bin/bench-fleet -ingotd bin/ingotd -nodes '$(NODES)' -flat '$(FLAT)' -conductors $(or $(CONDUCTORS),1) -engine $(or $(ENGINE),sqlite) -report build $(if $(GOALS),-goals)

bench-ui: bench-scrape ## How long the dashboard takes with 100 and with 10,000 nodes: first rows, all rows, and a change on the screen, which have a goal of a second; and a scrape (half a minute)
	@sh tools/deps.sh test
	$(GO) test -run '^$$' -bench FirstPaint -benchtime 5x ./test/ui

SEEDS ?= 1
conformance: ## Generated requests to a real Ironic and to ingotd, and their answers compared (SEEDS=10, SEED=, AUTH=, FOR=30m; RECORD=1 keeps those of Ironic for make test)
	@$(GO) run ./test/conformance -seeds $(SEEDS) $(if $(SEED)$(RECORD),-seed $(or $(SEED),21)) $(if $(filter command line,$(origin AUTH)),-auth $(AUTH)) $(if $(FOR),-for $(FOR)) $(if $(RECORD),-record)

pictures: build ## Take the dashboard's pictures in docs/pictures anew, with Chromium (a minute)
	@sh tools/deps.sh build test
	mkdir -p docs/pictures
	INGOT_PICTURES=$(CURDIR)/docs/pictures $(GO) test -count=1 -run 'Look.*Right|FollowedLive|AgentFound|ControllerReports' ./test/ui

packages: ## Build packages (deb, rpm), container image and Helm chart into build/packages/, with checksums and lists of what is in them; that of the ramdisk after make ramdisk
	$(QUICK) $(GO) -C tools/package run . -source $(CURDIR) -out $(CURDIR)/build/packages -ramdisk $(CURDIR)/build/ramdisk/server

release: ## Build and sign a release of the tagged commit, into build/release/ (KEY=fingerprint of a key that gpg has)
	@[ -n '$(KEY)' ] || { echo 'make release: name the key to sign with, by its fingerprint: make release KEY=...' >&2; exit 1; }
	@$(GO) -C tools/package run . -source $(CURDIR) -release '$(KEY)' -show-version
	@$(MAKE) --no-print-directory ramdisk
	$(QUICK) $(GO) -C tools/package run . -source $(CURDIR) -out $(CURDIR)/build/release -ramdisk $(CURDIR)/build/ramdisk/server -release '$(KEY)'

clean: ## Remove what was built
	rm -rf bin build
