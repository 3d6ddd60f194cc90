# Everything one does with this repository. `make help` lists it; the work is in scripts/ and cargo.

SHELL := /bin/bash
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60

.DEFAULT_GOAL := help

help: ## This list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Show what Ferroxy does, in network namespaces of its own; leaves nothing behind
	cargo build --locked --package ferroxy
	target/debug/ferroxy demo

test: ## Everything CI checks: tools, lint, a short fuzz run, all tests
	scripts/ensure-tools
	$(MAKE) lint
	scripts/fuzz --seconds 10
	scripts/test

test-fast: ## The tests that need no privileges (ring 0)
	scripts/test --fast

test-vm: ## Only the tests that run in an emulated machine with Linux 6.1 (ring 3; x86-64, Debian; minutes)
	scripts/test --vm

lint: ## Formatting, clippy, the dependency policy (deny.toml)
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	scripts/check-dependencies

fmt: ## Format the code
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml

build: ## Build for debugging: target/debug/ferroxy
	cargo build --locked --workspace

release: ## Build for use: target/release/ferroxy
	cargo build --locked --release --package ferroxy

install: release ## Install the release build to $(DESTDIR)$(PREFIX)/bin (PREFIX=/usr/local)
	install -D -m 755 target/release/ferroxy "$(DESTDIR)$(PREFIX)/bin/ferroxy"

image-check: ## Build the image's files without a container tool, and try them (as root; minutes the first time)
	scripts/image-check

bench: ## Measure nftables mode against nft on the same kernel, the agent's memory, and iptables mode (15 minutes)
	cargo bench --locked --package ferroxy --bench dataplane
	cargo bench --locked --package ferroxy --bench iptables

bench-agent: ## Measure whole proxies at scale: ours, and PEER=/path/to/kube-proxy (SIZES=1000x10,… MODE=nftables OUTPUT=text; 10 minutes each)
	cargo bench --locked --package ferroxy --bench agent -- --mode=$(or $(MODE),nftables) --output=$(or $(OUTPUT),text) \
		--folder="$(CURDIR)/target/bench-agent" $(if $(SIZES),--sizes="$(SIZES)") $(if $(PEER),--peer="$(abspath $(PEER))") \
		$(if $(KUBEBUILDER_ASSETS),--assets="$(abspath $(KUBEBUILDER_ASSETS))")

fuzz: ## Fuzz every target for FUZZ_SECONDS=60
	scripts/fuzz --seconds $(FUZZ_SECONDS)

doc: ## The code's documentation: target/doc/ferroxy/index.html
	cargo doc --locked --workspace --no-deps --document-private-items

clean: ## Remove everything that was built
	cargo clean
	rm -rf fuzz/target fuzz/corpus fuzz/artifacts

.PHONY: help demo test test-fast test-vm lint fmt build release install image-check bench bench-agent fuzz doc clean
