# Entry points for users and CI. `make help` lists them; scripts/ and cargo do the work.

SHELL := /bin/bash
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
ARCHITECTURES ?= $(if $(filter x86_64,$(shell uname -m)),x86_64 aarch64,$(shell uname -m))

.DEFAULT_GOAL := help

help: ## List all targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Show what Ferroxy does in its own network namespaces; leaves nothing behind
	cargo build --locked --package ferroxy
	target/debug/ferroxy demo

test: ## Run everything CI checks: tools, lint, a short fuzz run, all tests
	scripts/ensure-tools
	scripts/test

test-fast: ## Run the tests that need no privileges (ring 0)
	scripts/test --fast

test-vm: ## Run only the tests in an emulated machine with Linux 6.1 (ring 3; x86-64, Debian; takes minutes)
	scripts/test --vm

cross: ## Build for Windows, arm64 and big-endian machines, and run unit tests and the corpus there (x86-64, Debian; takes minutes)
	scripts/cross

test-windows: ## Build for Windows and run the tests under wine (x86-64, Debian; takes minutes)
	scripts/cross windows

lint: fmt-check ## Check formatting, clippy and the dependency policy (deny.toml)
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --package ferroxy --no-default-features --features api,top -- -D warnings
	cargo clippy --locked --package ferroxy --no-default-features -- -D warnings
	scripts/check-dependencies

fmt-check:
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check

fmt: ## Format the code
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml

build: ## Debug build: target/debug/ferroxy
	cargo build --locked --workspace

release: ## Release build: target/release/ferroxy
	cargo build --locked --release --package ferroxy

install: release ## Install the release build to $(DESTDIR)$(PREFIX)/bin (PREFIX=/usr/local)
	install -D -m 755 target/release/ferroxy "$(DESTDIR)$(PREFIX)/bin/ferroxy"

static: ## Static release binaries for x86-64 and arm64: target/static (ARCHITECTURES="x86_64 aarch64"; Debian; takes minutes)
	scripts/static $(ARCHITECTURES)

packages: ## deb, rpm, static binaries, SBOMs and SHA256SUMS: target/packages (ARCHITECTURES="x86_64 aarch64"; Debian; takes minutes)
	scripts/packages $(ARCHITECTURES)

packages-check: packages ## Build the packages and check their contents: files, modes, owners, program, unit, configuration
	scripts/check-packages target/packages/*.deb target/packages/*.rpm
	cd target/packages && sha256sum --check --quiet SHA256SUMS

reproducible: ## Build binary, deb, rpm and SBOM twice in different directories and compare the bytes (takes many minutes)
	scripts/reproducible

site: ## The documents as a site: target/site/index.html (installs mdBook with cargo; the first time takes minutes)
	scripts/site

image-check: ## Build and test the content of the image without a container tool (as root; takes minutes the first time)
	scripts/image-check

bench: ## Benchmark nftables mode against nft, the agent's memory, and iptables mode (15 minutes)
	cargo bench --locked --package ferroxy --bench dataplane
	cargo bench --locked --package ferroxy --bench iptables

bench-agent: ## Benchmark complete proxies at scale: ours, and PEER=/path/to/kube-proxy (SIZES=1000x10,… MODE=nftables OUTPUT=text; 10 minutes each)
	cargo bench --locked --package ferroxy --bench agent -- --mode=$(or $(MODE),nftables) --output=$(or $(OUTPUT),text) \
		--folder="$(CURDIR)/target/bench-agent" $(if $(SIZES),--sizes="$(SIZES)") $(if $(PEER),--peer="$(abspath $(PEER))") \
		$(if $(KUBEBUILDER_ASSETS),--assets="$(abspath $(KUBEBUILDER_ASSETS))")

bench-fleet: ## What 1, 10 and 50 agents cost one API server: ours, and PEER=/path/to/kube-proxy (AGENTS=1,10,50 SIZE=1000x10 OUTPUT=text; 5 minutes each)
	cargo bench --locked --package ferroxy --bench fleet -- --output=$(or $(OUTPUT),text) $(if $(AGENTS),--agents="$(AGENTS)") \
		$(if $(SIZE),--size="$(SIZE)") $(if $(PEER),--peer="$(abspath $(PEER))") $(if $(KUBEBUILDER_ASSETS),--assets="$(abspath $(KUBEBUILDER_ASSETS))")

bench-hostile: ## What a hostile tenant costs another one, against a quiet phase (OUTPUT=text; 4 minutes)
	cargo bench --locked --package ferroxy --bench hostile -- --output=$(or $(OUTPUT),text)

bench-page: ## What the node's page and its journal cost an agent at 500 changes/s, against an agent without them (RATE=500 ROUNDS=3; as root; 2 minutes)
	cargo bench --locked --package ferroxy --bench page -- --rate=$(or $(RATE),500) --rounds=$(or $(ROUNDS),3)

bench-proxy: ## Benchmark the engine of userspace mode against direct connections, HAProxy and nginx (ROUNDS=5 PICTURE=file.svg; as root; 3 minutes)
	scripts/ensure-tools proxies
	cargo bench --locked --package ferroxy-proxy --bench proxy -- --rounds=$(or $(ROUNDS),5) $(if $(PICTURE),--picture="$(abspath $(PICTURE))")

bench-sockets: ## Connections through a Service at sockets, against direct ones and nftables, with 1 and 44,000 Services (as root; 3 minutes)
	cargo bench --locked --package ferroxy --bench sockets

soak: ## An hour of churn, faults, hostile objects and restarts (SOAK_SECONDS=3600)
	FERROXY_SOAK_SECONDS=$(or $(SOAK_SECONDS),3600) FERROXY_SOAK_SERVICES=5000 FERROXY_SOAK_PACE=2 \
		cargo test --locked --release --package ferroxy --test soak -- --ignored --nocapture

fuzz: ## Fuzz every target for FUZZ_SECONDS=60
	scripts/fuzz --seconds $(FUZZ_SECONDS)

doc: ## Build the API documentation: target/doc/ferroxy/index.html
	cargo doc --locked --workspace --no-deps --document-private-items

clean: ## Remove all build products
	cargo clean
	rm -rf fuzz/target fuzz/corpus fuzz/artifacts

.PHONY: help demo test test-fast test-vm test-windows cross lint fmt fmt-check build release install static packages packages-check reproducible site image-check bench bench-agent bench-fleet bench-hostile bench-page bench-proxy bench-sockets soak fuzz doc clean
