// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The parts of a reply that are written to the Write list. Pure.
//!
//! The service reports each result that is eligible for direct placement, in the order of the
//! reply. Write chunks are used in the order of the list (RFC 8166, section 4.3.2): the first
//! payload is written to the first chunk, and so on. Payloads without a chunk stay in the message.
//!
//! ```text
//!   reply    |--- a ---|== payload 0 ==|pad|-- b --|== payload 1 ==|-- c --|
//!   chunks              --> Write chunk 0           --> Write chunk 1
//!   message  |--- a ---|-- b --|-- c --|
//! ```

use crate::xdr::{
    error::ErrorBody,
    units::{
        len_to_u32,
        padded_len, //
    }, //
};
use core::ops::Range;

/// The largest number of payloads of one reply that can be placed directly. A Call with more gets
/// an error report.
pub(super) const MAX_PAYLOADS: usize = 8;

/// The text of a symbolic link is shorter than this. Longer payloads need no [`Payloads::locate`].
const MAX_TEXT: u32 = 4096;

/// A result that is placed directly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Payload {
    /// The offset of the first octet in the reply.
    pub(super) offset: u32,
    /// The number of octets without XDR roundup. Zero if the chunk is not used.
    pub(super) length: u32,
}

impl Payload {
    /// Returns the offset of the reply after the payload and its roundup.
    fn end(self, total: u32) -> Option<u32> {
        let end = self.offset.checked_add(self.length)?;
        if end > total {
            return None;
        }
        Some(
            self.offset
                .checked_add(padded_len(self.length)?)?
                .min(total),
        )
    }
}

/// Returns the error report for a payload of `needed` octets that does not fit the Write chunk
/// after the first `chunks` ones.
fn unfit(chunks: usize, needed: u32) -> ErrorBody {
    ErrorBody::WriteResource {
        chunk: len_to_u32(chunks).map_or(u32::MAX, |chunks| chunks.saturating_add(1)),
        needed,
    }
}

/// The results of a reply that are placed directly.
#[derive(Default)]
pub(super) struct Payloads {
    payloads: [Payload; MAX_PAYLOADS],
    count: usize,
    /// The first payload after those.
    excess: Option<Payload>,
}

impl Payloads {
    /// Removes all payloads.
    pub(super) fn clear(&mut self) {
        self.count = 0;
        self.excess = None;
    }

    /// Adds a payload.
    pub(super) fn note(&mut self, payload: Payload) {
        match self.payloads.get_mut(self.count) {
            Some(slot) => {
                *slot = payload;
                self.count += 1;
            }
            None => {
                self.excess.get_or_insert(payload);
            }
        }
    }

    /// Assigns the payloads of a reply of `total` octets to Write chunks, in order. `chunks` has
    /// the room of each in octets, or `None` for a chunk without segments. The payload for such a
    /// chunk stays in the message (RFC 8166, section 4.3.2.3), and so do payloads without a chunk.
    /// A payload that is not within the reply needs no room, because the service has truncated the
    /// reply.
    ///
    /// # Errors
    ///
    /// The error report for the first payload that does not fit its chunk, or for too many payloads
    /// with a chunk. It is sent instead of the reply.
    pub(super) fn assign(
        &mut self,
        total: u32,
        mut chunks: impl Iterator<Item = Option<u64>>,
    ) -> Result<(), ErrorBody> {
        let mut assigned = 0;
        for payload in self.payloads.iter_mut().take(self.count) {
            match chunks.next() {
                None => break,
                Some(None) => payload.length = 0,
                Some(Some(_)) if payload.end(total).is_none() => payload.length = 0,
                Some(Some(room)) if u64::from(payload.length) > room => {
                    return Err(unfit(assigned, payload.length))
                }
                Some(Some(_)) => {}
            }
            assigned += 1;
        }
        self.count = assigned;
        let excess = self.excess.filter(|excess| excess.end(total).is_some());
        match excess {
            Some(Payload { length, .. }) if chunks.next().flatten().is_some() => {
                Err(unfit(assigned, length))
            }
            _ => Ok(()),
        }
    }

    /// Drops payloads that are not within a reply of `total` octets, because the service may have
    /// truncated the reply. Returns the length of the part that stays in the message.
    pub(super) fn finalize(&mut self, total: u32) -> u32 {
        let mut at = 0;
        let mut message = total;
        for payload in self.payloads.iter_mut().take(self.count) {
            match payload.end(total) {
                Some(end) if payload.offset >= at && payload.length != 0 => {
                    at = end;
                    message = message.saturating_sub(end.saturating_sub(payload.offset));
                }
                _ => payload.length = 0,
            }
        }
        message
    }

    /// Checks the offsets of payloads by the length word in front of each. `word` reads four octets
    /// of the reply. For the text of a symbolic link, nfsd's NFSv4 reports the offset of the length
    /// word, four octets early. A payload that is at neither offset stays in the message.
    pub(super) fn locate(&mut self, word: impl Fn(u32) -> Option<u32>) {
        for payload in self.payloads.iter_mut().take(self.count) {
            let Payload { offset, length } = *payload;
            if length == 0 || length >= MAX_TEXT {
                continue;
            }
            if offset.checked_sub(4).and_then(&word) == Some(length) {
                continue;
            }
            match offset.checked_add(4) {
                Some(start) if word(offset) == Some(length) => payload.offset = start,
                _ => payload.length = 0,
            }
        }
    }

    /// Returns the only payload of a reply of `total` octets, and the offset of the reply after the
    /// payload and its roundup. `None` if there are several, if the payload is not within the
    /// reply, or if its offset has to be checked, see [`Self::locate`].
    #[inline]
    pub(super) fn sole(&self, total: u32) -> Option<(Payload, u32)> {
        let payload = *self.payloads.first()?;
        if self.count != 1 || payload.length < MAX_TEXT {
            return None;
        }
        Some((payload, payload.end(total)?))
    }

    /// Returns the payloads, one for each Write chunk, starting with the first.
    pub(super) fn all(&self) -> &[Payload] {
        self.payloads.get(..self.count).unwrap_or_default()
    }

    /// Returns the part of a finalized reply from its first payload to the end of the last one.
    pub(super) fn span(&self) -> Option<Range<u32>> {
        let mut used = self.all().iter().filter(|payload| payload.length != 0);
        let first = used.next()?;
        let last = used.next_back().unwrap_or(first);
        Some(first.offset..last.offset.saturating_add(last.length))
    }

    /// Returns the parts of a finalized reply of `total` octets that stay in the message, in order.
    pub(super) fn regions(&self, total: u32) -> impl Iterator<Item = Range<u32>> + Clone + '_ {
        let mut used = self.all().iter().filter(|payload| payload.length != 0);
        let mut next = Some(0);
        core::iter::from_fn(move || {
            let start = next?;
            match used.next() {
                Some(payload) => {
                    next = payload.end(total);
                    Some(start..payload.offset)
                }
                None => {
                    next = None;
                    Some(start..total)
                }
            }
        })
        .filter(|region| !region.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(state: &Payloads, total: u32) -> [Option<Range<u32>>; 4] {
        let mut it = state.regions(total);
        [it.next(), it.next(), it.next(), it.next()]
    }

    #[test]
    fn nothing_placed() {
        let mut state = Payloads::default();
        assert_eq!(state.finalize(100), 100);
        assert_eq!(regions(&state, 100), [Some(0..100), None, None, None]);
        assert!(state.span().is_none());
    }

    #[test]
    fn two_payloads_with_roundup() {
        let mut state = Payloads::default();
        state.note(Payload {
            offset: 20,
            length: 5,
        });
        state.note(Payload {
            offset: 40,
            length: 8,
        });
        assert_eq!(state.assign(60, [Some(5), Some(100)].into_iter()), Ok(()));
        assert_eq!(state.finalize(60), 44);
        assert_eq!(state.span(), Some(20..48));
        assert_eq!(
            regions(&state, 60),
            [Some(0..20), Some(28..40), Some(48..60), None]
        );
    }

    #[test]
    fn payload_at_the_end_without_roundup() {
        let mut state = Payloads::default();
        state.note(Payload {
            offset: 20,
            length: 5,
        });
        assert_eq!(state.assign(25, [Some(5), Some(9)].into_iter()), Ok(()));
        assert_eq!(state.finalize(25), 20);
        assert_eq!(regions(&state, 25), [Some(0..20), None, None, None]);
    }

    #[test]
    fn payload_cut_back() {
        let mut state = Payloads::default();
        state.note(Payload {
            offset: 20,
            length: 50,
        });
        assert_eq!(state.assign(40, [Some(50)].into_iter()), Ok(()));
        assert_eq!(state.finalize(40), 40);
        assert_eq!(state.span(), None);
        assert_eq!(regions(&state, 40), [Some(0..40), None, None, None]);
        assert_eq!(
            state.all(),
            [Payload {
                offset: 20,
                length: 0
            }]
        );
    }

    /// Returns a reply of words, each of which is the number of its octets before it, but for the
    /// lengths at 16 and 60.
    fn word(at: u32) -> Option<u32> {
        match at {
            16 => Some(9),
            60 => Some(5),
            at if at < 100 => Some(at),
            _ => None,
        }
    }

    #[test]
    fn payload_four_octets_early() {
        let mut state = Payloads::default();
        for (offset, length) in [(20, 9), (60, 5), (40, 7), (60, MAX_TEXT), (0, 3)] {
            state.note(Payload { offset, length });
        }
        state.locate(word);
        let found = [(20, 9), (64, 5), (40, 0), (60, MAX_TEXT), (0, 0)];
        let found = found.map(|(offset, length)| Payload { offset, length });
        assert_eq!(state.all(), found);
    }

    #[test]
    fn the_only_payload() {
        let (offset, length) = (20, MAX_TEXT + 1);
        let (mut state, payload) = (Payloads::default(), Payload { offset, length });
        assert_eq!(state.sole(9000), None);
        state.note(payload);
        let end = offset + length + 3;
        assert_eq!(state.sole(end), Some((payload, end)));
        // Truncated, and without roundup.
        assert_eq!(state.sole(end - 4), None);
        assert_eq!(state.sole(end - 3), Some((payload, end - 3)));
        state.note(payload);
        assert_eq!(state.sole(9000), None);
        let mut text = Payloads::default();
        text.note(Payload { offset, length: 9 });
        assert_eq!(text.sole(9000), None);
    }

    #[test]
    fn chunk_too_small() {
        let mut state = Payloads::default();
        for length in [8, 50] {
            state.note(Payload { offset: 20, length });
        }
        let (chunk, needed) = (2, 50);
        let report = ErrorBody::WriteResource { chunk, needed };
        assert_eq!(
            state.assign(72, [Some(8), Some(49)].into_iter()),
            Err(report)
        );
    }

    #[test]
    fn chunk_too_small_for_a_payload_that_was_truncated() {
        let mut state = Payloads::default();
        for (offset, length) in [(20, 8), (40, 50)] {
            state.note(Payload { offset, length });
        }
        assert_eq!(state.assign(36, [Some(8), Some(49)].into_iter()), Ok(()));
        let lengths = state.all().iter().map(|payload| payload.length);
        assert!(lengths.eq([8, 0]));
        assert_eq!(state.finalize(36), 28);
    }

    #[test]
    fn payloads_without_a_chunk_stay_in_the_message() {
        let mut state = Payloads::default();
        for offset in [8, 24] {
            state.note(Payload { offset, length: 8 });
        }
        assert_eq!(state.assign(40, [Some(8)].into_iter()), Ok(()));
        assert_eq!(state.all().len(), 1);
        assert_eq!(state.finalize(40), 32);
        assert_eq!(regions(&state, 40), [Some(0..8), Some(16..40), None, None]);
    }

    #[test]
    fn payload_of_an_empty_chunk() {
        let mut state = Payloads::default();
        let length = 8;
        for offset in [20, 40, 52] {
            state.note(Payload { offset, length });
        }
        assert_eq!(
            state.assign(60, [None, Some(100), None].into_iter()),
            Ok(())
        );
        state.locate(|_| Some(length));
        assert_eq!(state.finalize(60), 52);
        let lengths = state.all().iter().map(|payload| payload.length);
        assert!(lengths.eq([0, 8, 0]));
        assert_eq!(state.span(), Some(40..48));
        assert_eq!(regions(&state, 60), [Some(0..40), Some(48..60), None, None]);
    }

    #[test]
    fn more_payloads_than_can_be_placed() {
        let noted = || {
            let mut state = Payloads::default();
            for i in 0..MAX_PAYLOADS + 2 {
                let offset = 8 * i as u32;
                let length = 8 + i as u32;
                state.note(Payload { offset, length });
            }
            state
        };
        // The others stay in the message if there is no chunk for them.
        let room = core::iter::repeat(Some(100));
        assert_eq!(noted().assign(100, room.clone().take(MAX_PAYLOADS)), Ok(()));
        let (chunk, needed) = (9, 16);
        let report = ErrorBody::WriteResource { chunk, needed };
        assert_eq!(
            noted().assign(100, room.take(MAX_PAYLOADS + 1)),
            Err(report)
        );
    }
}
