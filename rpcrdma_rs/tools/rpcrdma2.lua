-- SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
--
-- A Wireshark dissector of RPC-over-RDMA version 2 (draft-cel-nfsv4-rpcrdma-version-two-04,
-- section 6.2) in the Sends of RoCE and InfiniBand. Wireshark's own dissector handles version 1.
--
--   tshark -X lua_script:rpcrdma2.lua -r FILE -Y rpcrdma2
--
-- Fields have the names of the XDR. Only the first packet of a Send is decoded.

local rpcrdma2 = Proto("rpcrdma2", "RPC-over-RDMA Version 2 (draft -04)")

local MSG, NOMSG, ERROR, OPTIONAL, CONNPROP, REQPROP, RESPROP, UPDPROP = 0, 1, 4, 5, 6, 7, 8, 9

local procs = {
	[MSG] = "RDMA2_MSG", [NOMSG] = "RDMA2_NOMSG", [ERROR] = "RDMA2_ERROR",
	[OPTIONAL] = "RDMA2_OPTIONAL", [CONNPROP] = "RDMA2_CONNPROP", [REQPROP] = "RDMA2_REQPROP",
	[RESPROP] = "RDMA2_RESPROP", [UPDPROP] = "RDMA2_UPDPROP",
}
local directions = { [0] = "CALL", [1] = "REPLY" }
local errors = {
	[1] = "RDMA2_ERR_VERS", [2] = "RDMA2_ERR_BAD_XDR", [3] = "RDMA2_ERR_INVALID_PROC",
	[4] = "RDMA2_ERR_READ_CHUNKS", [5] = "RDMA2_ERR_WRITE_CHUNKS", [6] = "RDMA2_ERR_SEGMENTS",
	[7] = "RDMA2_ERR_WRITE_RESOURCE", [8] = "RDMA2_ERR_REPLY_RESOURCE",
	[9] = "RDMA2_ERR_INVALID_OPTION", [10] = "RDMA2_ERR_SYSTEM",
}
local properties = { [1] = "RDMA2_PROPID_RBSIZ", [2] = "RDMA2_PROPID_BRS" }
local support = {
	[0] = "RDMA2_BKREQSUP_NONE", [1] = "RDMA2_BKREQSUP_INLINE", [2] = "RDMA2_BKREQSUP_GENL",
}

local f = {}

local function number(name, text, shown_as, strings)
	f[name] = ProtoField.uint32("rpcrdma2." .. name, text, shown_as, strings)
end

number("rdma_xid", "XID", base.HEX)
number("rdma_vers", "Version", base.DEC)
number("rdma_credit", "Credits", base.DEC)
number("rdma_proc", "Procedure", base.DEC, procs)
number("rdma_direction", "Direction", base.DEC, directions)
number("rdma_inv_handle", "Handle to invalidate", base.HEX)
number("rdma_position", "Position", base.DEC)
number("rdma_handle", "Handle", base.HEX)
number("rdma_length", "Length", base.DEC)
f.rdma_offset = ProtoField.uint64("rpcrdma2.rdma_offset", "Offset", base.HEX)
number("rdma_err", "Error", base.DEC, errors)
number("rdma_vers_low", "Lowest version", base.DEC)
number("rdma_vers_high", "Highest version", base.DEC)
number("rdma_max_chunks", "Most chunks", base.DEC)
number("rdma_max_segments", "Most segments", base.DEC)
number("rdma_chunk_index", "Number of the chunk", base.DEC)
number("rdma_length_needed", "Octets needed", base.DEC)
number("rdma_optdir", "Direction", base.DEC, directions)
number("rdma_opttype", "Option", base.DEC)
f.rdma_optinfo = ProtoField.bytes("rpcrdma2.rdma_optinfo", "Information")
number("rdma_which", "Property", base.DEC, properties)
f.rdma_data = ProtoField.bytes("rpcrdma2.rdma_data", "Data")
number("rbsiz", "Receive Buffer Size", base.DEC)
number("brs", "Backward Request Support", base.DEC, support)
number("rdma_nochg", "Does not change", base.HEX)
number("rdma_done", "Done", base.HEX)
number("rdma_rejected", "Rejected", base.HEX)

rpcrdma2.fields = f

local cut = ProtoExpert.new("rpcrdma2.cut", "The message ends within its header",
	expert.group.MALFORMED, expert.severity.WARN)
local partial = ProtoExpert.new("rpcrdma2.partial", "The RPC message continues in the next packet",
	expert.group.UNDECODED, expert.severity.NOTE)
rpcrdma2.experts = { cut, partial }

-- Reads a message word by word. Raises "cut" at its end.
local Words = {}
Words.__index = Words

function Words:take(count)
	if self.at + count > self.tvb:len() then
		error("cut", 0)
	end
	local range = self.tvb(self.at, count)
	self.at = self.at + count
	return range
end

function Words:word(tree, name)
	local range = self:take(4)
	if tree then
		tree:add(f[name], range)
	end
	return range:uint()
end

function Words:opaque(tree, name)
	local length = self:word()
	if length > self.tvb:len() then
		error("cut", 0)
	end
	local range = length > 0 and self:take(length)
	if range then
		tree:add(f[name], range)
	end
	self:take(-length % 4)
	return range
end

function Words:segment(tree)
	self:word(tree, "rdma_handle")
	self:word(tree, "rdma_length")
	tree:add(f.rdma_offset, self:take(8))
end

function Words:chunk(tree, title)
	local item = tree:add(rpcrdma2, self.tvb(self.at), title)
	for _ = 1, self:word() do
		self:segment(item)
	end
end

-- Returns whether there are no chunks.
function Words:lists(tree)
	local plain = true
	while self:word() ~= 0 do
		plain = false
		local item = tree:add(rpcrdma2, self.tvb(self.at), "Read segment")
		self:word(item, "rdma_position")
		self:segment(item)
	end
	while self:word() ~= 0 do
		plain = false
		self:chunk(tree, "Write chunk")
	end
	if self:word() ~= 0 then
		plain = false
		self:chunk(tree, "Reply chunk")
	end
	return plain
end

function Words:set(tree, title)
	local item = tree:add(rpcrdma2, self.tvb(self.at), title)
	for _ = 1, self:word() do
		local which = self:word(item, "rdma_which")
		local data = self:opaque(item, "rdma_data")
		if data and data:len() == 4 and which == 1 then
			item:add(f.rbsiz, data)
		elseif data and data:len() == 4 and which == 2 then
			item:add(f.brs, data)
		end
	end
end

function Words:subset(tree, name)
	for _ = 1, self:word() do
		self:word(tree, name)
	end
end

local arms = {
	[1] = { "rdma_vers_low", "rdma_vers_high" },
	[4] = { "rdma_max_chunks" },
	[5] = { "rdma_max_chunks" },
	[6] = { "rdma_max_segments" },
	[7] = { "rdma_chunk_index", "rdma_length_needed" },
	[8] = { "rdma_length_needed" },
}

-- Shows the part after the fixed words. Returns whether a whole RPC message follows the header.
local function body(words, tree, proc)
	if proc == MSG or proc == NOMSG then
		words:word(tree, "rdma_direction")
		words:word(tree, "rdma_inv_handle")
		return words:lists(tree) and proc == MSG
	elseif proc == ERROR then
		for _, name in ipairs(arms[words:word(tree, "rdma_err")] or {}) do
			words:word(tree, name)
		end
	elseif proc == OPTIONAL then
		words:word(tree, "rdma_optdir")
		words:word(tree, "rdma_opttype")
		words:opaque(tree, "rdma_optinfo")
	elseif proc == CONNPROP then
		words:set(tree, "Properties at the start")
		words:subset(tree, "rdma_nochg")
	elseif proc == REQPROP then
		words:set(tree, "Properties wanted")
	elseif proc == RESPROP then
		words:subset(tree, "rdma_done")
		words:subset(tree, "rdma_rejected")
		words:set(tree, "Properties set to other values")
	elseif proc == UPDPROP then
		words:set(tree, "Properties from now on")
	end
	return false
end

function rpcrdma2.dissector(tvb, pinfo, tree)
	local words = setmetatable({ tvb = tvb, at = 0 }, Words)
	local item = tree:add(rpcrdma2, tvb())
	pinfo.cols.protocol = "RPCoRDMA2"
	local xid = words:word(item, "rdma_xid")
	words:word(item, "rdma_vers")
	words:word(item, "rdma_credit")
	local proc = words:word(item, "rdma_proc")
	pinfo.cols.info = string.format("%s XID 0x%x", procs[proc] or proc, xid)
	local whole, rpc = pcall(body, words, item, proc)
	if not whole then
		item:add_proto_expert_info(cut)
	elseif rpc and words.at < tvb:len() then
		item:set_len(words.at)
		local rest = tvb(words.at):tvb()
		if not pcall(function() Dissector.get("rpc"):call(rest, pinfo, tree) end) then
			item:add_proto_expert_info(partial)
		end
	else
		item:set_len(words.at)
	end
	return tvb:len()
end

-- The opcodes of packets with which a message begins: SEND First, SEND Only, SEND Only with Immediate,
-- SEND Only with Invalidate. The data of RDMA Reads and Writes may look like a message.
local begins = { [0x00] = true, [0x04] = true, [0x05] = true, [0x17] = true }
local opcode = Field.new("infiniband.bth.opcode")

-- Accepts version word 2 with a procedure of version 2. An error report about an unknown version has
-- that version, and other dissectors handle it.
local function is_version_2(tvb, pinfo, tree)
	local packet = opcode()
	if not packet or not begins[packet.value] then
		return false
	end
	if tvb:len() < 20 or tvb(4, 4):uint() ~= 2 or not procs[tvb(12, 4):uint()] then
		return false
	end
	rpcrdma2.dissector(tvb, pinfo, tree)
	return true
end

rpcrdma2:register_heuristic("infiniband.payload", is_version_2)
