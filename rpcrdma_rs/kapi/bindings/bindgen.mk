# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# Bindings of what the kernel crate does not bind: sunrpc, ib_core, rdma_cm and our own C.
#
# The kernel's own parameters come first (enum styles, opaque types, the derive of
# `MaybeZeroable`); ours follow. Only types of the listed headers are generated, everything
# they refer to is the kernel crate's own type, so that e.g. a `list_head` here is a
# `kernel::bindings::list_head` there. Layout tests stay on: they become const assertions.

bindings-dir := kapi/bindings

# Flags of GCC that libclang does not know; the list of srctree/rust/Makefile, which keeps
# it private.
rpcrdma_bindgen_skip_c_flags := -mno-fp-ret-in-387 -mpreferred-stack-boundary=% \
	-mskip-rax-setup -mgeneral-regs-only -msign-return-address=% \
	-mindirect-branch=thunk-extern -mindirect-branch-register \
	-mfunction-return=thunk-extern -mrecord-mcount -mabi=lp64 \
	-mindirect-branch-cs-prefix -mstack-protector-guard% -mtraceback=no \
	-mno-pointers-to-nested-functions -mno-string \
	-mno-strict-align -mstrict-align -mdirect-extern-access \
	-mexplicit-relocs -mno-check-zero-division \
	-fconserve-stack -falign-jumps=% -falign-loops=% \
	-femit-struct-debug-baseonly -fno-ipa-cp-clone -fno-ipa-sra \
	-fno-partial-inlining -fplugin-arg-arm_ssp_per_task_plugin-% \
	-fno-reorder-blocks -fno-allow-store-data-races -fasan-shadow-offset=% \
	-fzero-call-used-regs=% -fno-stack-clash-protection \
	-fno-inline-functions-called-once -fsanitize=bounds-strict \
	-fstrict-flex-arrays=% -fmin-function-alignment=% \
	-fzero-init-padding-bits=% -mno-fdpic \
	-fdiagnostics-show-context -fdiagnostics-show-context=% \
	--param=% --param asan-% -fno-isolate-erroneous-paths-dereference

rpcrdma_bindgen_target_x86 := x86_64-linux-gnu
rpcrdma_bindgen_target_arm64 := aarch64-linux-gnu
rpcrdma_bindgen_target_loongarch := loongarch64-linux-gnusf
rpcrdma_bindgen_target_riscv := riscv64-linux-gnu

ifdef CONFIG_CC_IS_CLANG
rpcrdma_bindgen_c_flags = $(filter-out $(CC_FLAGS_LTO) -mindirect-branch-cs-prefix, $(c_flags))
else
rpcrdma_bindgen_c_flags = $(filter-out $(CC_FLAGS_LTO) $(rpcrdma_bindgen_skip_c_flags), $(c_flags)) \
	-w --target=$(rpcrdma_bindgen_target_$(SRCARCH))
endif

quiet_cmd_rpcrdma_bindgen = BINDGEN $@
      cmd_rpcrdma_bindgen = \
	$(BINDGEN) $< \
		$(shell grep -Evh '^\#|^$$' $(srctree)/rust/bindgen_parameters $(src)/$(bindings-dir)/parameters) \
		--rust-target 1.85 --use-core --with-derive-default --ctypes-prefix ffi \
		--no-debug '.*' --enable-function-attribute-detection \
		-o $@ -- $(rpcrdma_bindgen_c_flags) -fno-builtin -D__BINDGEN__ -DMODULE -I$(src)

$(obj)/$(bindings-dir)/bindings_generated.rs: $(src)/$(bindings-dir)/helper.h \
		$(src)/$(bindings-dir)/parameters $(src)/$(bindings-dir)/bindgen.mk FORCE
	$(call if_changed_dep,rpcrdma_bindgen)

targets += $(bindings-dir)/bindings_generated.rs

$(obj)/rpcrdma_main.o: $(obj)/$(bindings-dir)/bindings_generated.rs
