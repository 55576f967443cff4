// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Filters for completions: cheap tests of the first words of a message, before it is decoded. They
//! may be wrong: [`super::message`] decodes and checks the message.

use super::header::Proc;
use super::units::WORD;
use super::version::Version;

/// Returns whether a message seems to have a Read list, judging by its first words. The server's
/// completions decode only such messages, and those that pass [`may_have_properties`].
pub(crate) fn may_have_read_list(bytes: &[u8]) -> bool {
    let word = |at: usize| {
        let word = bytes.get(at..at.saturating_add(WORD))?;
        Some(u32::from_be_bytes(word.try_into().ok()?))
    };
    let version = word(WORD).and_then(Version::from_u32);
    version
        .and_then(|version| word(version.lists_at()))
        .is_some_and(|list| list != 0)
}

/// Returns whether a message seems to be RDMA2_CONNPROP or RDMA2_UPDPROP, judging by its first
/// words.
pub(crate) fn may_have_properties(bytes: &[u8]) -> bool {
    const VERSION: [u8; WORD] = Version::Two.to_u32().to_be_bytes();
    const PROCS: [[u8; WORD]; 2] = [
        Proc::ConnProp.to_u32().to_be_bytes(),
        Proc::UpdProp.to_u32().to_be_bytes(),
    ];
    let is_one = |proc: &[u8]| PROCS.iter().any(|known| known == proc);
    bytes.get(WORD..2 * WORD) == Some(&VERSION) && bytes.get(3 * WORD..4 * WORD).is_some_and(is_one)
}
