# The only entry point, for people and for CI. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The cache, which may be kept from one clone to the next: cluster binaries, images, Debian packages. CI keeps target/ here too.
export BAREVIRT_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/barevirt
export NODES ?= 2
# How often a test may be run before it counts as failed, and how many end-to-end tests run at once.
export TEST_TRIES ?= 1
E2E_THREADS ?= 2
# How many of the long builds `make test` runs at once. Each uses all processors, but none all the time: the end of one is a
# single linker or archiver, and then others have work for the rest. What has to end before images are packed comes first: `make test`
# runs the others with NICE.
LANES ?= 5
NICE ?=
# The revision with which `make e2e CHANGED=1` compares.
BASE ?= HEAD~1
# Where cargo leaves tests and programs, and where the programs of the images are: CI sets WITH_TESTS and has both in one folder.
BUILT := target/$(if $(CARGO_BUILD_TARGET),$(CARGO_BUILD_TARGET)/)debug
PROGRAMS := $(if $(WITH_TESTS),$(BUILT),target/x86_64-unknown-linux-musl/image)
# The programs of end-to-end tests, and cargo's messages of their compilation.
END_TO_END := $(notdir $(basename $(wildcard e2e/tests/*.rs)) $(patsubst %/main.rs,%,$(wildcard e2e/tests/*/main.rs)))
MESSAGES := $(CURDIR)/target/compiled.jsonl
# With how many seeds `make properties` tries each property.
SEEDS ?= 20
# In how many random worlds `make interleavings` tries the model of migrations.
WORLDS ?= 100000
# How long `make fuzz` gives each target.
export FUZZ_SECONDS ?= 120
export PATH := $(HOME)/.cargo/bin:/usr/local/go/bin:$(PATH)
# The compiler for ring's C sources under musl: that of musl-tools, or the default one.
export CC_x86_64_unknown_linux_musl ?= $(or $(shell command -v musl-gcc),gcc)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: demo
demo: cluster-up cluster-sync ## a Kubernetes on this machine, Barevirt on it, and a virtual machine you can see boot
	@$(BUILT)/demo

.PHONY: test
test: begin fmt shellcheck ## everything CI runs: what check does, the end-to-end tests on a real cluster with real guests, and each measurement once
	@$(MAKE) --no-print-directory --jobs=$(LANES) NICE='nice -n 10' programs-built images-of-components cluster-programs images-of-guests
	@passed=1; \
	$(MAKE) --no-print-directory --keep-going --jobs=4 NICE='nice -n 10' test-disturbing test-unit bench-alone-once deny || passed=; \
	$(MAKE) --no-print-directory --keep-going --jobs=2 test-together bench-cluster-once || passed=; \
	$(BUILT)/tests end-to-end --program zz_uninstall || passed=; \
	$(BUILT)/tests report && [ "$$passed" ]

# The tests that disturb the whole cluster mostly wait. So what needs no cluster is compiled and runs beside them, and while the cluster
# starts. They have the programs that programs-built has compiled.
.PHONY: test-disturbing test-unit bench-alone-once
test-disturbing bench-alone-once: export COMPILED := $(MESSAGES)
test-disturbing:
	@for each in image-check cluster-up cluster-sync; do $(MAKE) --no-print-directory $$each || exit; done
	@$(BUILT)/tests end-to-end --threads $(E2E_THREADS) --skip together,zz_uninstall
test-unit:
	@$(MAKE) --no-print-directory clippy module-circles
	@$(BUILT)/tests unit
bench-alone-once:
	@.ci/timed "bench, once: without a cluster" $(BUILT)/bench --once --programs $(PROGRAMS) $(addprefix --only ,size launch disk migrate proxies import taps)

# The benchmarks once, without moves and neighbours, which drain a node and flood virt-api: `make test-long` has them.
.PHONY: test-together bench-cluster-once
test-together:
	@$(BUILT)/tests end-to-end --threads $(E2E_THREADS) --program together
bench-cluster-once:
	@.ci/timed "bench, once: on the cluster" $(BUILT)/bench --once --programs $(PROGRAMS) $(addprefix --only ,start streams scale network plug)

.PHONY: begin
begin: deps
	@rm -f target/steps.tsv target/times.json

.PHONY: check
check: static unit module-circles ## formatting, lints, licences, module circles, unit and protocol tests

.PHONY: static
static: fmt clippy deny shellcheck

.PHONY: fmt
fmt: deps
	@cargo fmt --all --check

# Cargo prints the warnings of the compilation again.
.PHONY: clippy
clippy: tests-built
	@said=$$(.ci/compile 2>&1); [ -z "$$said" ] || { printf '%s\n' "$$said" >&2; exit 1; }

.PHONY: deny
deny: cargo-deny
	@cargo deny --log-level error check licenses bans sources

.PHONY: cargo-deny
cargo-deny: deps
	@.ci/timed "cargo-deny" $(NICE) cluster-up/deps.sh cargo_deny

# Security advisories about the crates that are used here. The list is fetched, so this is not part of `make check`.
.PHONY: advisories
advisories: cargo-deny ## security advisories about the crates of Cargo.lock; needs a network
	@cargo deny --log-level error check advisories

.PHONY: shellcheck
shellcheck: deps
	@shellcheck -x cluster-up/*.sh images/*.sh images/*/*.sh e2e/*.sh .ci/run .ci/timed .ci/compile e2e/fuzz/rustc

.PHONY: unit
# The same random worlds for the same code, so that a failure is caused by the change; `make properties` uses others.
unit test: export PROPTEST_RNG_SEED ?= 1
unit: deps guest-tiny tests-built
	@$(BUILT)/tests unit

# All tests and the programs beside them are compiled and linted at once, with one set of features: nothing is compiled twice.
.PHONY: tests-built
tests-built: deps ui
	@.ci/timed "compile: tests and lints" $(NICE) .ci/compile

# What the cluster's tests need, for `make test`. A warning fails it. Targets of the whole workspace are selected, since cargo turns on other
# features for one package alone.
.PHONY: programs-built
programs-built: deps ui
	@[ -z "$${COMPILED:-}" ] || exit 0; mkdir -p target; \
	said=$$(.ci/timed "compile: programs and end-to-end tests" .ci/compile --bins $(addprefix --test ,$(END_TO_END)) \
		--message-format=json-render-diagnostics 2>&1 >$(MESSAGES)) && [ -z "$$said" ] || { printf '%s\n' "$$said" >&2; exit 1; }

.PHONY: module-circles
module-circles: tests-built ## circles of imports between modules, the longest files and functions; fails on a new circle
	@$(BUILT)/module-circles

.PHONY: image-check
image-check: images ## checks the contents of the launcher's image, and boots a guest with it
	@.ci/timed "image check" images/check.sh

.PHONY: guest-tiny
guest-tiny: deps
	@REGISTRY=localhost .ci/timed "images: guests" images/build.sh guest-tiny

.PHONY: e2e
e2e: cluster-up cluster-sync tests-built ## the end-to-end tests on the cluster of this machine; ONLY=word,word for some, CHANGED=1 for those about what changed since BASE
	@$(BUILT)/tests end-to-end --threads $(E2E_THREADS) $(if $(ONLY),--only '$(ONLY)') $(if $(CHANGED),--changed '$(BASE)')

.PHONY: test-long
test-long: begin cluster-up cluster-sync tests-built ## the long tests (e2e/long.txt): random kills, lost nodes, mixed versions, fleets; and ui-test
	@$(BUILT)/tests end-to-end --long --threads $(E2E_THREADS)
	@.ci/timed "bench, once: what disturbs others" $(BUILT)/bench --once --programs $(PROGRAMS) $(addprefix --only ,moves neighbours)
	@.ci/timed "page of virtctl ui, in Chromium" $(MAKE) --no-print-directory ui-test
	@$(BUILT)/tests report

.PHONY: bench
bench: cluster-up cluster-sync ## start latency, memory, API writes, image sizes: target/bench.json and a table
	@$(BUILT)/bench --programs $(PROGRAMS) $(BENCH)

.PHONY: interleavings
interleavings: deps ## the model of virt-controller's migrations in WORLDS (100000) random worlds, optimised
	@seed=$${PROPTEST_RNG_SEED:-$$((RANDOM * 32768 + RANDOM))}; \
	echo "interleavings: PROPTEST_RNG_SEED=$$seed"; \
	PROPTEST_CASES=$(WORLDS) PROPTEST_RNG_SEED=$$seed \
		cargo test --locked --quiet --release -p virt-controller --lib -- --nocapture migration::tests::world

.PHONY: properties
properties: deps ## the property tests in new random worlds, SEEDS (20) times
	@for ((run = 0; run < $(SEEDS); run++)); do \
		seed=$$((RANDOM * 32768 + RANDOM)); \
		echo "properties: PROPTEST_RNG_SEED=$$seed"; \
		PROPTEST_RNG_SEED=$$seed cargo test --locked --quiet --workspace --exclude barevirt-e2e --lib --bins; \
	done

# The sanitizer is an unstable option, and the compiler is a stable one. One target directory and equal lock files: what the fuzz
# crates have in common is compiled once. Assertions and checks of overflow are on; little optimisation and no debug information
# save time, and so does e2e/fuzz/rustc.
.PHONY: fuzz
fuzz: export RUSTC_BOOTSTRAP := 1
fuzz: export CARGO_TARGET_DIR := $(CURDIR)/target/fuzz
fuzz: export RUSTC_WRAPPER := $(CURDIR)/e2e/fuzz/rustc
fuzz: export CARGO_PROFILE_DEV_OPT_LEVEL := 1
fuzz: export CARGO_PROFILE_DEV_DEBUG := false
fuzz: export CARGO_INCREMENTAL := 0
fuzz: deps ## random input for each parser, for FUZZ_SECONDS (120) each; FUZZ=NAME for one
	@cargo fuzz --version >/dev/null 2>&1 || env -u CARGO_TARGET_DIR -u RUSTC_WRAPPER cargo install --locked --quiet cargo-fuzz
	@for crate in api controller/importer handler launcher qmp; do \
		cd "$(CURDIR)/$$crate"; \
		for target in $$(cargo fuzz list); do \
			[[ -z "$(FUZZ)" || "$(FUZZ)" == "$$target" ]] || continue; \
			echo "$$crate: $$target"; \
			mkdir -p "fuzz/corpus/$$target"; \
			[[ ! -e "fuzz/seeds/$$target.tar.xz" ]] || tar -C "fuzz/corpus/$$target" -xJf "fuzz/seeds/$$target.tar.xz"; \
			cargo fuzz run --dev "$$target" "fuzz/corpus/$$target" "fuzz/seeds/$$target" -- \
				-max_total_time="$(FUZZ_SECONDS)" -max_len=8192 -timeout=25 -rss_limit_mb=2048 -print_final_stats=1; \
		done; \
	done

# Miri is a part of nightly compilers only. PROPTEST_CASES: it runs programs a hundred times slower.
.PHONY: miri
miri: deps ## parsers and layouts under Miri; needs `rustup toolchain install nightly --component miri,rust-src`
	@MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 cargo +nightly miri test --locked --target-dir target/miri -p container-disk --lib -- header
	@MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 cargo +nightly miri test --locked --target-dir target/miri -p barevirt-protocol --lib -- control
	@MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 cargo +nightly miri test --locked --target-dir target/miri -p barevirt-machine --lib -- layout quote
	@MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4 cargo +nightly miri test --locked --target-dir target/miri -p virt-handler --lib -- cgroup

# One set of features for all programs, as in .ci/compile, so that dependencies are compiled once. This is an unstable option of
# cargo.
.PHONY: weaken
weaken: deps ## removes each protection of e2e/weaken.yaml from a copy and shows that its test fails; continues an earlier run; ONLY=word,word for some, ANEW=1 to begin again
	@cargo build --locked -q -p barevirt-e2e --bin weaken
	@RUSTC_BOOTSTRAP=1 $(BUILT)/weaken $(if $(ONLY),--only '$(ONLY)') $(if $(ANEW),--anew)

.PHONY: images images-of-components images-of-guests
images: images-of-components images-of-guests ## all container images as OCI archives in target/images
images-of-components: deps $(if $(WITH_TESTS),programs-built)
	@REGISTRY=localhost $(if $(WITH_TESTS),COMPILED=$(MESSAGES)) .ci/timed "images: components" images/build.sh components
images-of-guests: deps
	@REGISTRY=localhost .ci/timed "images: guests" $(NICE) images/build.sh guests

.PHONY: manifests
manifests: deps ## generates manifests/, which users apply or give to helm, from the types
	@cargo run --locked -q -p barevirt-install --bin manifests -- --out manifests

.PHONY: docs
docs: deps ## generates docs/reference/: fields and gates, subresources, commands of virtctl
	@UPDATE_DOCS=1 RUSTC_WORKSPACE_WRAPPER=clippy-driver cargo test --locked --quiet \
		-p barevirt-api -p virt-api -p virtctl --lib --bins --test reference reference_page

# These are tests of virtctl, because they check the docs against its parser and its explain.
.PHONY: docs-test
docs-test: tests-built ## checks links, commands and manifests of the docs against the program and the repository; part of check
	@RUSTC_WORKSPACE_WRAPPER=clippy-driver cargo test --locked --quiet --workspace --bin virtctl docs_tests

.PHONY: docs-site
docs-site: deps ## builds the docs as a site with mdBook, in target/site
	@cluster-up/deps.sh mdbook
	@MDBOOK=$(BAREVIRT_CACHE)/tools/mdbook node docs/site/build.mjs

# images/release.sh lists the other variables.
.PHONY: release
release: deps ## VERSION=x.y.z [REGISTRY=host/path]: images, manifests, chart, virtctl, checksums in dist/ (docs/releasing.md)
	@$(if $(VERSION),,echo 'make release VERSION=1.2.3' >&2; exit 1;) images/release.sh '$(VERSION)'

# Not part of `make test`, because helm takes minutes to build.
.PHONY: release-check
release-check: deps ## tests the chart with helm, that images are reproducible, and the release in dist/ if there is one
	@export HELM=$$(cluster-up/build.sh helm)/helm; \
	cluster-up/build.sh kubernetes etcd >/dev/null; \
	cargo test --locked --quiet -p barevirt-install --test helm; \
	images/chart-check.sh; \
	images/twice.sh guest-tiny; \
	if [ -d dist ]; then images/release-check.sh; fi

.PHONY: release-push
release-push: ## pushes the images of dist/ to the registry that they are named after
	@images/push.sh

.PHONY: cluster-up
cluster-up: deps ## a real Kubernetes on this machine (NODES=1 or 2); does nothing if it is up
	@.ci/timed "cluster: up" cluster-up/up.sh

# What cluster-up builds when it is missing.
.PHONY: cluster-programs
cluster-programs: deps
	@.ci/timed "cluster: programs" $(NICE) cluster-up/build.sh >/dev/null

.PHONY: cluster-sync
cluster-sync: images virtctl ## builds, loads the images, installs, waits until it runs
	@.ci/timed "cluster: installation" cluster-up/sync.sh

# Compiled together with the tests: programs that are built alone have other features.
.PHONY: virtctl
virtctl: deps ui
	@.ci/timed "compile: virtctl" .ci/compile --test image_upload --test fleet
	@ln -sf virtctl $(BUILT)/kubectl-virt

# Runs before virtctl is compiled, which includes the files of target/ui.
.PHONY: ui
ui: deps ## builds the page of `virtctl ui` with npm in target/ui; virtctl includes it when it is compiled
	@.ci/timed "page of virtctl ui" node virtctl/ui/build.mjs

.PHONY: ui-test
ui-test: virtctl ## `virtctl ui` in a real Chromium, against the cluster of this machine
	@cluster-up/deps.sh chromium
	@node virtctl/ui/test/page.mjs

.PHONY: cluster-load
cluster-load: ## IMAGES="a.tar b.tar": loads OCI archives into every node
	@cluster-up/load.sh $(IMAGES)

.PHONY: cluster-addons
cluster-addons: deps ## ADDONS="block rwx registry http s3 proxy prometheus policy": installs what only some tests need, see docs/test-bed.md
	@cluster-up/addons.sh $(ADDONS)

.PHONY: cluster-down
cluster-down: ## removes the cluster and leaves nothing behind
	@cluster-up/down.sh

.PHONY: deps
deps: # installs what the build and the cluster need, from the package registries; does nothing if it is installed
	@.ci/timed "dependencies" cluster-up/deps.sh
