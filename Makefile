# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# rpcrdma_rs: the targets for users and developers. The kernel's own make reads
# Kbuild and rpcrdma_rs/Kbuild, not this file.
#
# With KDIR=<prepared kernel tree>, targets run here with this machine's tools.
# Without it, they run in the root directory that 'make prepare' creates from Debian's
# packages, against the kernel tree that it prepares.

# KERNEL=<release>: build for that kernel of Debian, in a directory of its own.
export KERNEL
MODULE := $(if $(KERNEL),.build/$(KERNEL)/)rpcrdma_rs/rpcrdma_rs.ko
VM := selftests/vm
NATIVE := all clippy rust-analyzer fmt fmtcheck doc test
.DEFAULT_GOAL := all
MAKEFLAGS += --no-print-directory
# Progress lines print the time since then.
export STARTED := $(or $(STARTED),$(shell date +%s))

help:
	@echo 'The main jobs (as root, on Debian 12 or 13; prepare what they need):'
	@echo '  demo           two guests with the module: copy a source tree to the server and back'
	@echo '  check          the default test suites (SUITES="..." for some: see selftests/check)'
	@echo '  check-debug    tests in a kernel with KASAN, lockdep, kmemleak, fault injection'
	@echo '  bench          what an RPC costs, with our module and with the C module (15 minutes;'
	@echo '                 BENCH_ARGS=... : see selftests/bench/run --help); or, on a client with'
	@echo '                 an RDMA device: SERVER=<host> EXPORT=<path> [SECONDS=<n>]'
	@echo '  shell          a prompt in a client guest, with the mount in place'
	@echo
	@echo 'KERNEL=<release>, such as 7.2.12+deb13-amd64, selects another kernel of Debian.'
	@echo
	@echo 'For an administrator of a kernel with Rust:'
	@echo '  KDIR=<prepared kernel tree>    build $(MODULE) (KRELEASE=<release>'
	@echo '                 if not for the running kernel)'
	@echo '  install        the module, its modprobe.d lines, its udev rule, depmod'
	@echo '                 (INSTALL_MOD_PATH=<root>)'
	@echo '  clean          remove what was built'
	@echo '  deb            Debian packages, for DKMS, in .build/packages'
	@echo
	@echo 'For a developer (in the prepared root directory unless KDIR is given; lint and fuzz'
	@echo 'on this machine):'
	@echo '  prepare        root directory, toolchain and kernel tree, in ~/.cache/rpcrdma-rs'
	@echo '  debug-kernel   the kernel of check-debug; debug-module: our modules for it'
	@echo '  all            build $(MODULE)'
	@echo '  test           host tests of the pure code'
	@echo '  fuzz           a bounded run of the fuzz targets (FUZZ_SECONDS=<n> for all)'
	@echo '  vmtest         guest tests (VMTEST_ARGS=... : see selftests/vm/check --help)'
	@echo '  fmt fmtcheck   rustfmt with the kernel'"'"'s settings'
	@echo '  lint           the layers, and other rules of the tree'
	@echo '  clippy         clippy with the kernel'"'"'s flags, warnings are errors'
	@echo '  rust-analyzer  rust-project.json'
	@echo '  doc            rustdoc of the wire format and of the crate, in doc/'

ifdef KDIR

KRELEASE ?= $(shell uname -r)
KMAKE = $(MAKE) -C $(KDIR) M=$(CURDIR) $(KMAKE_ARGS)
RUSTFMT ?= rustfmt
SOURCES = $(shell find rpcrdma_rs xdr clnt svc selftests -name '*.rs' \
	! -name '*generated*' ! -path '*/target/*')

check-kdir:
	@rpcrdma_rs/check-kdir $(KDIR) $(KRELEASE)

# Objects belong to one kernel, and make does not notice that KDIR is for another one.
KERNEL_ID = $$(cat $(KDIR)/include/config/kernel.release; grep ^CONFIG_RUSTC_VERSION_TEXT= $(KDIR)/.config)

all: check-kdir
	@[ "$$(cat .built-for 2>/dev/null)" = "$(KERNEL_ID)" ] || $(MAKE) clean-objects
	@echo "$(KERNEL_ID)" >.built-for
	$(KMAKE) modules

# The kernel's make does not format external modules, so this runs rustfmt itself.
fmt:
	$(RUSTFMT) --edition 2021 --config-path $(KDIR)/.rustfmt.toml $(SOURCES)

fmtcheck:
	$(RUSTFMT) --edition 2021 --config-path $(KDIR)/.rustfmt.toml --check $(SOURCES)

# In a copy: clippy may change the generated code.
clippy: check-kdir
	@rm -rf $(CLIPPY_DIR)
	@mkdir -p $(CLIPPY_DIR)
	@cp -r Kbuild rpcrdma_rs xdr clnt svc $(CLIPPY_DIR)
	@find $(CLIPPY_DIR) \( -name '*.o' -o -name '.*.cmd' -o -name '*.ko' \) -delete
	+$(MAKE) -C $(KDIR) M=$(CLIPPY_DIR) $(KMAKE_ARGS) CLIPPY=1 KRUSTFLAGS=-Dwarnings \
		rpcrdma_rs/rpcrdma_main.o
	@rm -rf $(CLIPPY_DIR)
CLIPPY_DIR ?= /tmp/rpcrdma_rs-clippy

# The kernel's script does not know the cfg of the test modules: add it.
rust-analyzer: check-kdir
	$(KMAKE) rust-analyzer
	python3 -c "$$CFG_OF_SUITES"

define CFG_OF_SUITES
import json
suites = {"kapi_test.rs": "rpcrdma_kapi_test", "kunit_main.rs": "rpcrdma_kunit"}
with open("rust-project.json") as file:
    project = json.load(file)
for crate in project["crates"]:
    cfg = suites.get(crate["root_module"].rsplit("/", 1)[-1])
    if cfg:
        crate["cfg"].append(cfg)
with open("rust-project.json", "w") as file:
    json.dump(project, file, sort_keys=True, indent=4)
endef
export CFG_OF_SUITES

# Document the crate with the command that compiled it, adapted for rustdoc. As in the
# kernel's own documentation, a link to srctree/<file> leads to that file in the kernel tree.
doc: all
	rustdoc --edition 2021 --document-private-items -A rustdoc::private_intra_doc_links \
		--crate-name xdr -o doc xdr/mod.rs
	RUSTC_BOOTSTRAP=1 sh -c "$$(sed -n -e '1s/^savedcmd_[^=]*:= //p' rpcrdma_rs/.rpcrdma_main.o.cmd | \
		sed -e 's/ rustc / rustdoc --document-private-items --crate-name rpcrdma_rs /' \
			-e 's/ --emit=[^ ]*//g' -e 's/ --out-dir [^ ]*/ -o doc/' -e 's/ -Zbinary_dep_depinfo=y//')"
	@find doc -name '*.html' -exec sed -i -e 's#href="srctree/#href="$(realpath $(KDIR))/#g' {} +

# Do not build in the checkout, where this machine's cargo may build.
test:
	cd selftests/host && CARGO_TARGET_DIR=$(TEST_DIR) cargo test --offline -- --show-output
TEST_DIR ?= /tmp/rpcrdma_rs-host

else # no KDIR

$(NATIVE): prepare
	@$(VM)/native $@

prepare:
	@$(VM)/prepare

endif

demo shell: all
	@$(VM)/$@

check: all
	@selftests/check $(SUITES)

debug-kernel: prepare
	@$(VM)/debug-kernel

debug-module: debug-kernel
	@$(VM)/debug-module

check-debug: debug-module
	@selftests/check $(or $(SUITES),debug)

vmtest: all
	@$(VM)/check $(VMTEST_ARGS)

deb:
	@$(VM)/deb

# With SERVER and EXPORT, measure this machine.
ifneq ($(SERVER)$(EXPORT),)
bench:
	@[ -n "$(SERVER)" ] && [ -n "$(EXPORT)" ] || { echo "error: give both: make bench SERVER=<host> EXPORT=<path>" >&2; exit 2; }
	@python3 -B selftests/bench/hardware.py '$(SERVER)' '$(EXPORT)' $(SECONDS)
else
bench: all
	@selftests/bench/run $(or $(BENCH_ARGS),--memory --out bench-results)
endif

fuzz:
	@selftests/fuzz/run $(or $(FUZZ_SECONDS),60)

lint:
	@selftests/lint/layers.sh
	@selftests/lint/prose.sh
	@selftests/lint/stack.sh
	@selftests/lint/protocol.py
	@selftests/lint/documents.py

# The module itself names the release for which it was built.
INSTALL_RELEASE = $(shell grep -saoE 'vermagic=[^ ]+' $(MODULE) | head -n 1 | cut -d= -f2)
MODLIB = $(INSTALL_MOD_PATH)/lib/modules/$(INSTALL_RELEASE)
DEPMOD ?= $(shell PATH=$$PATH:/usr/sbin:/sbin command -v depmod)

install:
	@[ -f $(MODULE) ] || { echo "error: no $(MODULE): run make (or make KDIR=<prepared kernel tree>) first" >&2; exit 1; }
	@[ -n "$(INSTALL_RELEASE)" ] || { echo "error: $(MODULE) names no kernel release" >&2; exit 1; }
	@[ -n "$(DEPMOD)" ] || { echo "error: no depmod here: install the package kmod" >&2; exit 1; }
	@! ls $(MODLIB)/updates/dkms/rpcrdma_rs.ko* >/dev/null 2>&1 || { echo "error: DKMS has installed rpcrdma_rs for kernel $(INSTALL_RELEASE): first apt purge rpcrdma-rs-dkms" >&2; exit 1; }
	@other=$$(find $(MODLIB)/ -name 'ib_core.ko*' ! -path '*/kernel/*' 2>/dev/null | head -n 1); [ -z "$$other" ] || \
		{ echo "error: kernel $(INSTALL_RELEASE) uses an ib_core that is not its own, $$other: this module does not fit it" >&2; exit 1; }
	@[ -d $(MODLIB) ] || { echo "error: no modules of kernel $(INSTALL_RELEASE) in $(MODLIB)" >&2; exit 1; }
	install -D -m 644 $(MODULE) $(MODLIB)/updates/rpcrdma_rs.ko
	install -D -m 644 rpcrdma_rs/modprobe.d/rpcrdma_rs.conf $(INSTALL_MOD_PATH)/etc/modprobe.d/rpcrdma_rs.conf
	install -D -m 644 rpcrdma_rs/udev/60-rpcrdma_rs.rules $(INSTALL_MOD_PATH)/etc/udev/rules.d/60-rpcrdma_rs.rules
	$(DEPMOD) $(INSTALL_MOD_PATH:%=-b %) $(INSTALL_RELEASE)

clean-objects:
	find . \( -path ./.git -o -path ./.debug -o -path ./.build \) -prune -o \( -name '*.o' -o -name '*.ko' -o -name '*.mod' \
		-o -name '*.mod.c' -o -name '.*.cmd' -o -name '.*.d' -o -name '*.rmeta' \
		-o -name modules.order -o -name Module.symvers -o -name '*generated.rs' \) \
		-type f -exec rm -f {} +
	rm -f .module-common.o .built-for

clean: clean-objects
	rm -rf .build .debug bench-results doc rust-project.json selftests/host/target selftests/fuzz/target

.PHONY: help check-kdir $(NATIVE) prepare debug-kernel debug-module demo shell check check-debug vmtest deb bench fuzz lint install clean clean-objects
