// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * A QEMU plugin that counts how often each instruction of a guest's kernel modules is
 * executed, and writes "<address> <count>" lines to the file out= when QEMU ends.
 *
 * QEMU 10 or later. Debian has no package with qemu-plugin.h, so the few declarations of
 * its API (version 4) that are needed here are repeated below.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;
typedef struct {
	struct qemu_plugin_scoreboard *score;
	size_t offset;
} plugin_u64;
enum plugin_op { INLINE_ADD_U64 };

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id,
					   void (*cb)(plugin_id, struct qemu_plugin_tb *));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t size);
void qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(struct qemu_plugin_insn *insn,
							 enum plugin_op op, plugin_u64 entry,
							 uint64_t operand);
uint64_t qemu_plugin_u64_sum(plugin_u64 entry);
void qemu_plugin_register_atexit_cb(plugin_id id, void (*cb)(plugin_id, void *), void *data);

/* The part of x86-64's address space that modules are loaded to. */
#define MODULES_START 0xffffffffa0000000ull
#define MODULES_END 0xffffffffff000000ull

/* A hash table of addresses, with room for the instructions of all modules of a guest. */
#define SLOTS (1u << 21)
static uint64_t addresses[SLOTS];
static struct qemu_plugin_scoreboard *scores;
static char out[4096];

static plugin_u64 counter(size_t slot)
{
	return (plugin_u64){ scores, slot * sizeof(uint64_t) };
}

static size_t slot_of(uint64_t address)
{
	size_t slot = (address * 0x9e3779b97f4a7c15ull) >> 43;

	while (addresses[slot] && addresses[slot] != address)
		slot = (slot + 1) % SLOTS;
	addresses[slot] = address;
	return slot;
}

static void translated(plugin_id id, struct qemu_plugin_tb *tb)
{
	size_t count = qemu_plugin_tb_n_insns(tb);

	(void)id;
	for (size_t i = 0; i < count; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint64_t address = qemu_plugin_insn_vaddr(insn);

		if (address >= MODULES_START && address < MODULES_END)
			qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
				insn, INLINE_ADD_U64, counter(slot_of(address)), 1);
	}
}

static void finished(plugin_id id, void *data)
{
	FILE *file = fopen(out, "w");

	(void)id;
	(void)data;
	if (!file)
		return;
	for (size_t slot = 0; slot < SLOTS; slot++) {
		uint64_t count = addresses[slot] ? qemu_plugin_u64_sum(counter(slot)) : 0;

		if (count)
			fprintf(file, "%llx %llu\n", (unsigned long long)addresses[slot],
				(unsigned long long)count);
	}
	fclose(file);
}

EXPORT int qemu_plugin_version = 4;

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++)
		if (!strncmp(argv[i], "out=", 4))
			snprintf(out, sizeof(out), "%s", argv[i] + 4);
	scores = qemu_plugin_scoreboard_new(SLOTS * sizeof(uint64_t));
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, finished, NULL);
	return 0;
}
