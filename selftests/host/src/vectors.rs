// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Messages as they go over the wire, written by hand from RFC 8166 and RFC 8797.
//!
//! They are given as XDR words, which the wire carries big-endian; nothing here was made by
//! the encoder under test. They are the reference of the tests and the seed of the fuzzers.

/// A message on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    /// What it is; also the name of its file in a corpus.
    pub name: &'static str,
    /// Its words.
    pub words: &'static [u32],
}

impl Vector {
    /// The octets of the message.
    pub fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_be_bytes()).collect()
    }
}

/// An NFSv3 NULL Call without chunks (RFC 8166, figure of a short message).
pub const INLINE_CALL: Vector = Vector {
    name: "inline-call",
    words: &[
        0x1122_3344, // rdma_xid
        1,           // rdma_vers
        128,         // rdma_credit
        0,           // rdma_proc: RDMA_MSG
        0,           // Read list: not present
        0,           // Write list: not present
        0,           // Reply chunk: not present
        0x1122_3344, // RPC xid
        0,           // RPC msg_type: CALL
        2,           // RPC version
        100_003,     // program: NFS
        3,           // version
        0,           // procedure: NULL
        0,           // cred: AUTH_NONE
        0,
        0, // verf: AUTH_NONE
        0,
    ],
};

/// Its Reply.
pub const INLINE_REPLY: Vector = Vector {
    name: "inline-reply",
    words: &[
        0x1122_3344, // rdma_xid
        1,           // rdma_vers
        64,          // rdma_credit: granted
        0,           // rdma_proc: RDMA_MSG
        0,           // Read list
        0,           // Write list
        0,           // Reply chunk
        0x1122_3344, // RPC xid
        1,           // RPC msg_type: REPLY
        0,           // MSG_ACCEPTED
        0,           // verf: AUTH_NONE
        0,
        0, // SUCCESS
    ],
};

/// An NFSv3 WRITE: the data, 5 octets, in a Read chunk of two segments at position 96.
pub const READ_CHUNK_CALL: Vector = Vector {
    name: "read-chunk-call",
    words: &[
        0x0000_00a1, // rdma_xid
        1,           // rdma_vers
        32,          // rdma_credit
        0,           // rdma_proc: RDMA_MSG
        1,           // Read list: item present
        96,          // position
        0x0000_1001, // handle
        3,           // length
        0x0000_00a1, // offset, high
        0x0000_0000, // offset, low
        1,           // Read list: item present
        96,          // position
        0x0000_1002, // handle
        2,           // length
        0x0000_00a1, // offset, high
        0x0000_1000, // offset, low
        0,           // Read list: end
        0,           // Write list
        0,           // Reply chunk
        0x0000_00a1, // RPC xid
        0,           // CALL
        2,           // RPC version
        100_003,     // NFS
        3,           // version
        7,           // WRITE
        0,
        0, // cred
        0,
        0,  // verf
        32, // file handle: length
        0x0101_0101,
        0x0202_0202,
        0x0303_0303,
        0x0404_0404,
        0x0505_0505,
        0x0606_0606,
        0x0707_0707,
        0x0808_0808,
        0, // file offset, high
        0, // file offset, low
        5, // count
        2, // stable: FILE_SYNC
        5, // data: length; the octets are in the chunk
    ],
};

/// The same idea, with two chunks out of order: segments of position 80 before those of 72.
pub const TWO_CHUNKS_CALL: Vector = Vector {
    name: "two-chunks-call",
    words: &[
        0x0000_00b2, // rdma_xid
        1,
        4,
        0,           // RDMA_MSG
        1,           // Read list: item present
        20,          // position
        0x0000_2001, // handle
        8,           // length
        0,
        0x1000,      // offset
        1,           // Read list: item present
        8,           // position
        0x0000_2002, // handle
        6,           // length: roundup is left out
        0,
        0x2000,      // offset
        1,           // Read list: item present
        20,          // position
        0x0000_2003, // handle
        0,           // length: an empty segment
        0,
        0x3000,      // offset
        0,           // Read list: end
        0,           // Write list
        0,           // Reply chunk
        0x0000_00b2, // stream 0: RPC xid
        0,           // stream 4: CALL; 8 to 15 is the first chunk with its roundup
        0x5555_5555, // stream 16; 20 to 27 is the second chunk
        0x6666_6666, // stream 28
    ],
};

/// A Long Call: everything in a Position Zero Read chunk.
pub const POSITION_ZERO_CALL: Vector = Vector {
    name: "position-zero-call",
    words: &[
        0x0000_00c3, // rdma_xid
        1,
        16,
        1,           // rdma_proc: RDMA_NOMSG
        1,           // Read list: item present
        0,           // position
        0x0000_3001, // handle
        4096,        // length
        0xffff_ffff, // offset, high
        0xffff_0000, // offset, low
        1,           // Read list: item present
        0,           // position
        0x0000_3002, // handle
        904,         // length
        0,
        0,
        0, // Read list: end
        0, // Write list
        0, // Reply chunk
    ],
};

/// A Call with a Write chunk of two segments.
pub const WRITE_CHUNK_CALL: Vector = Vector {
    name: "write-chunk-call",
    words: &[
        0x0000_00d4, // rdma_xid
        1,
        128,
        0,           // RDMA_MSG
        0,           // Read list
        1,           // Write list: chunk present
        2,           // segment count
        0x0000_4001, // handle
        4096,        // length
        0x0000_00d4,
        0x0000_0000, // offset
        0x0000_4002, // handle
        1000,        // length
        0x0000_00d4,
        0x0000_1000, // offset
        0,           // Write list: end
        0,           // Reply chunk
        0x0000_00d4, // RPC xid
        0,           // CALL
        2,
        100_003,
        3,
        6, // READ
        0,
        0,
        0,
        0,
    ],
};

/// Its Reply: 4100 octets were written.
pub const WRITE_CHUNK_REPLY: Vector = Vector {
    name: "write-chunk-reply",
    words: &[
        0x0000_00d4, // rdma_xid
        1,
        128,
        0,           // RDMA_MSG
        0,           // Read list
        1,           // Write list: chunk present
        2,           // segment count
        0x0000_4001, // handle
        4096,        // length: full
        0x0000_00d4,
        0x0000_0000,
        0x0000_4002, // handle
        4,           // length: what was written
        0x0000_00d4,
        0x0000_1000,
        0,           // Write list: end
        0,           // Reply chunk
        0x0000_00d4, // RPC xid
        1,           // REPLY
        0,
        0,
        0,
        0,
    ],
};

/// A Call with a Reply chunk.
pub const REPLY_CHUNK_CALL: Vector = Vector {
    name: "reply-chunk-call",
    words: &[
        0x0000_00e5, // rdma_xid
        1,
        128,
        0,           // RDMA_MSG
        0,           // Read list
        0,           // Write list
        1,           // Reply chunk: present
        1,           // segment count
        0x0000_5001, // handle
        8192,        // length
        0x0000_00e5,
        0x0000_0040, // offset
        0x0000_00e5, // RPC xid
        0,           // CALL
        2,
        100_003,
        3,
        16, // READDIR
        0,
        0,
        0,
        0,
    ],
};

/// A Long Reply: 5000 octets in the Reply chunk.
pub const REPLY_CHUNK_REPLY: Vector = Vector {
    name: "reply-chunk-reply",
    words: &[
        0x0000_00e5, // rdma_xid
        1,
        128,
        1,           // RDMA_NOMSG
        0,           // Read list
        0,           // Write list
        1,           // Reply chunk: present
        1,           // segment count
        0x0000_5001, // handle
        5000,        // length: what was written
        0x0000_00e5,
        0x0000_0040,
    ],
};

/// The same Call answered inline: the Reply chunk comes back unused.
pub const UNUSED_REPLY_CHUNK_REPLY: Vector = Vector {
    name: "unused-reply-chunk-reply",
    words: &[
        0x0000_00e5, // rdma_xid
        1,
        128,
        0,           // RDMA_MSG
        0,           // Read list
        0,           // Write list
        1,           // Reply chunk: present
        1,           // segment count
        0x0000_5001, // handle
        0,           // length: unused
        0x0000_00e5,
        0x0000_0040,
        0x0000_00e5, // RPC xid
        1,           // REPLY
        0,
        0,
        0,
        0,
    ],
};

/// All three lists at once: a Read chunk, two Write chunks, a Reply chunk.
pub const ALL_LISTS_CALL: Vector = Vector {
    name: "all-lists-call",
    words: &[
        0x0000_00f6, // rdma_xid
        1,
        8,
        0,           // RDMA_MSG
        1,           // Read list: item present
        12,          // position
        0x0000_6001, // handle
        16,          // length
        0,
        0x100,
        0,           // Read list: end
        1,           // Write list: chunk present
        1,           // segment count
        0x0000_6002, // handle
        512,         // length
        0,
        0x200,
        1,           // Write list: chunk present
        2,           // segment count
        0x0000_6003, // handle
        256,         // length
        0,
        0x300,
        0x0000_6004, // handle
        256,         // length
        0,
        0x400,
        0,           // Write list: end
        1,           // Reply chunk: present
        1,           // segment count
        0x0000_6005, // handle
        1024,        // length
        0,
        0x500,
        0x0000_00f6, // RPC xid
        0,           // CALL
        0xaaaa_aaaa,
    ],
};

/// ERR_CHUNK.
pub const ERR_CHUNK: Vector = Vector {
    name: "err-chunk",
    words: &[
        0x0000_0107, // rdma_xid
        1,           // rdma_vers
        128,         // rdma_credit
        4,           // rdma_proc: RDMA_ERROR
        2,           // rdma_err: ERR_CHUNK
    ],
};

/// ERR_VERS: only version 1 is spoken. The version of the failed message is echoed.
pub const ERR_VERS: Vector = Vector {
    name: "err-vers",
    words: &[
        0x0000_0118, // rdma_xid
        2,           // rdma_vers: that of the failed message
        128,         // rdma_credit
        4,           // rdma_proc: RDMA_ERROR
        1,           // rdma_err: ERR_VERS
        1,           // rdma_vers_low
        1,           // rdma_vers_high
    ],
};

/// The same to a peer that sent a version 1 message.
pub const ERR_VERS_ONE: Vector = Vector {
    name: "err-vers-one",
    words: &[0x0000_0118, 1, 128, 4, 1, 2, 3],
};

/// RDMA_MSGP, with its two words of alignment.
pub const MSGP: Vector = Vector {
    name: "msgp",
    words: &[0x0000_0129, 1, 1, 2, 4096, 1024, 0, 0, 0, 0x0000_0129, 0],
};

/// RDMA_DONE, padded to the length of a header.
pub const DONE: Vector = Vector {
    name: "done",
    words: &[0x0000_012a, 1, 1, 3, 0, 0, 0],
};

/// A procedure that is not defined.
pub const UNKNOWN_PROC: Vector = Vector {
    name: "unknown-proc",
    words: &[0x0000_012b, 1, 1, 5, 0, 0, 0],
};

/// A message of version 2.
pub const VERSION_TWO: Vector = Vector {
    name: "version-two",
    words: &[0x0000_012c, 2, 1, 0, 0, 0, 0],
};

/// Every message above.
pub const MESSAGES: &[Vector] = &[
    INLINE_CALL,
    INLINE_REPLY,
    READ_CHUNK_CALL,
    TWO_CHUNKS_CALL,
    POSITION_ZERO_CALL,
    WRITE_CHUNK_CALL,
    WRITE_CHUNK_REPLY,
    REPLY_CHUNK_CALL,
    REPLY_CHUNK_REPLY,
    UNUSED_REPLY_CHUNK_REPLY,
    ALL_LISTS_CALL,
    ERR_CHUNK,
    ERR_VERS,
    ERR_VERS_ONE,
    MSGP,
    DONE,
    UNKNOWN_PROC,
    VERSION_TWO,
];

/// Private data: remote invalidation, sends and receives 4 KiB.
pub const PRIVATE_4K: Vector = Vector {
    name: "private-4k",
    words: &[0xf6ab_0e18, 0x0101_0303],
};

/// Private data without flags, 1 KiB and 256 KiB, in a field filled with zeros.
pub const PRIVATE_ASYMMETRIC: Vector = Vector {
    name: "private-asymmetric",
    words: &[0xf6ab_0e18, 0x0100_00ff, 0, 0, 0],
};

/// All private data above.
pub const PRIVATE: &[Vector] = &[PRIVATE_4K, PRIVATE_ASYMMETRIC];
