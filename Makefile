# Entry points for users and CI. `make help` lists them; scripts/ and cargo do the work.

SHELL := /bin/bash
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60

.DEFAULT_GOAL := help

help: ## List all targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Show what Ferroxy does in its own network namespaces; leaves nothing behind
	cargo build --locked --package ferroxy
	target/debug/ferroxy demo

test: ## Run everything CI checks: tools, lint, a short fuzz run, all tests
	scripts/ensure-tools
	$(MAKE) lint
	scripts/fuzz --seconds 10
	scripts/test

test-fast: ## Run the tests that need no privileges (ring 0)
	scripts/test --fast

test-vm: ## Run only the tests in an emulated machine with Linux 6.1 (ring 3; x86-64, Debian; takes minutes)
	scripts/test --vm

cross: ## Build for Windows, arm64 and big-endian machines, and run unit tests and the corpus there (x86-64, Debian; takes minutes)
	scripts/cross

lint: ## Check formatting, clippy and the dependency policy (deny.toml)
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --package ferroxy --no-default-features --features api -- -D warnings
	cargo clippy --locked --package ferroxy --no-default-features -- -D warnings
	scripts/check-dependencies

fmt: ## Format the code
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml

build: ## Debug build: target/debug/ferroxy
	cargo build --locked --workspace

release: ## Release build: target/release/ferroxy
	cargo build --locked --release --package ferroxy

install: release ## Install the release build to $(DESTDIR)$(PREFIX)/bin (PREFIX=/usr/local)
	install -D -m 755 target/release/ferroxy "$(DESTDIR)$(PREFIX)/bin/ferroxy"

image-check: ## Build and test the content of the image without a container tool (as root; takes minutes the first time)
	scripts/image-check

bench: ## Benchmark nftables mode against nft, the agent's memory, and iptables mode (15 minutes)
	cargo bench --locked --package ferroxy --bench dataplane
	cargo bench --locked --package ferroxy --bench iptables

bench-agent: ## Benchmark complete proxies at scale: ours, and PEER=/path/to/kube-proxy (SIZES=1000x10,… MODE=nftables OUTPUT=text; 10 minutes each)
	cargo bench --locked --package ferroxy --bench agent -- --mode=$(or $(MODE),nftables) --output=$(or $(OUTPUT),text) \
		--folder="$(CURDIR)/target/bench-agent" $(if $(SIZES),--sizes="$(SIZES)") $(if $(PEER),--peer="$(abspath $(PEER))") \
		$(if $(KUBEBUILDER_ASSETS),--assets="$(abspath $(KUBEBUILDER_ASSETS))")

bench-hostile: ## What a hostile tenant costs another one, against a quiet phase (OUTPUT=text; 4 minutes)
	cargo bench --locked --package ferroxy --bench hostile -- --output=$(or $(OUTPUT),text)

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

.PHONY: help demo test test-fast test-vm cross lint fmt build release install image-check bench bench-agent bench-hostile soak fuzz doc clean
