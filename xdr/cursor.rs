// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Bounded reading and writing of XDR words (RFC 4506).

use super::error::{
    DecodeError,
    EncodeError,
    Item, //
};

/// A cursor that reads from the front of a slice and never beyond its end.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// Length of the whole slice, the octets read so far included.
    whole: usize,
}

impl<'a> Reader<'a> {
    /// Creates a reader at the first octet of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            whole: bytes.len(),
        }
    }

    /// Returns the octets that have not been read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns the number of octets read so far.
    pub(crate) fn at(&self) -> usize {
        self.whole.saturating_sub(self.rest.len())
    }

    /// Returns the length of the whole slice, the octets read so far included.
    pub(crate) fn whole(&self) -> usize {
        self.whole
    }

    /// Consumes the next `N` octets if all of them are zero. Returns whether it did.
    pub(crate) fn skip_zeros<const N: usize>(&mut self) -> bool {
        match self.rest.split_first_chunk::<N>() {
            Some((head, rest)) if *head == [0; N] => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    /// Consumes and returns the next `len` octets. The error names `item` if they are missing.
    pub(crate) fn take(&mut self, len: usize, item: Item) -> Result<&'a [u8], DecodeError> {
        let Some((head, rest)) = self.rest.split_at_checked(len) else {
            return Err(DecodeError::Truncated(item));
        };
        self.rest = rest;
        Ok(head)
    }

    /// Consumes and returns the next `N` octets.
    pub(crate) fn array<const N: usize>(&mut self, item: Item) -> Result<&'a [u8; N], DecodeError> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(DecodeError::Truncated(item));
        };
        self.rest = rest;
        Ok(head)
    }

    /// Consumes and returns one word.
    pub(crate) fn u32(&mut self, item: Item) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(*self.array(item)?))
    }

    /// Consumes the discriminator of an optional item. Returns whether the item is present.
    pub(crate) fn present(&mut self) -> Result<bool, DecodeError> {
        match self.u32(Item::Discriminator)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::Discriminator(other)),
        }
    }
}

/// A cursor that writes from the front of a buffer and never beyond its end.
pub(crate) struct Writer<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// Creates a writer at the first octet of `buf`.
    pub(crate) fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, len: 0 }
    }

    /// Returns the number of octets written so far.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends `bytes`, all of them or none.
    #[inline]
    pub(crate) fn put<const N: usize>(&mut self, bytes: [u8; N]) -> Result<(), EncodeError> {
        let room = self.buf.get_mut(self.len..).unwrap_or_default();
        let Some(place) = room.first_chunk_mut() else {
            return Err(EncodeError::NoSpace);
        };
        *place = bytes;
        self.len = self.len.saturating_add(N);
        Ok(())
    }

    /// Appends words, all of them or none.
    #[inline]
    pub(crate) fn words<const N: usize>(&mut self, words: [u32; N]) -> Result<(), EncodeError> {
        let bytes = words.map(u32::to_be_bytes);
        let bytes = bytes.as_flattened();
        let room = self.buf.get_mut(self.len..).unwrap_or_default();
        let Some(place) = room.get_mut(..bytes.len()) else {
            return Err(EncodeError::NoSpace);
        };
        place.copy_from_slice(bytes);
        self.len = self.len.saturating_add(bytes.len());
        Ok(())
    }

    /// Appends one word.
    #[inline]
    pub(crate) fn u32(&mut self, value: u32) -> Result<(), EncodeError> {
        self.put(value.to_be_bytes())
    }

    /// Discards everything written after the first `len` octets.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Overwrites the word at offset `at`, which must have been written before.
    pub(crate) fn patch_u32(&mut self, at: usize, value: u32) -> Result<(), EncodeError> {
        let word = self
            .buf
            .get_mut(..self.len)
            .and_then(|written| written.get_mut(at..))
            .and_then(|tail| tail.first_chunk_mut::<4>())
            .ok_or(EncodeError::NoSpace)?;
        *word = value.to_be_bytes();
        Ok(())
    }
}
