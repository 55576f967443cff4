// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the chunks of a request whose connection is closed. Nothing is registered.

use super::*;
use crate::kapi::{
    ext::{
        atomic::Full,
        scratch::ScratchPage, //
    },
    fixture::{
        contend,
        pause,
        pd, //
    },
};
use kernel::{
    page::PAGE_SIZE,
    sync::Arc, //
};

/// The number of regions of the request.
const REGIONS: u32 = 32;

/// A request's chunks, and the memory that they map.
#[pin_data]
struct Request {
    #[pin]
    chunks: SlotChunks,
    memory: ScratchPage,
    /// How often the chunks were unused while the server could access memory.
    early: Atomic<usize>,
}

#[kunit_tests(rpcrdma_client_chunks)]
mod tests {
    use super::*;

    #[test]
    fn no_memory_is_lent_when_the_chunks_are_unused() -> Result {
        let pd = pd()?;
        let memory = ScratchPage::new()?;
        let request = Arc::pin_init(
            pin_init!(Request {
                chunks <- SlotChunks::new(),
                memory,
                early: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        for _ in 0..20 {
            let mut idle = MrList::new();
            for _ in 0..REGIONS {
                idle.push(Mr::new(&pd, 1)?);
            }
            let pages = request.memory.segs(REGIONS as usize * PAGE_SIZE);
            let mut chunks = request.chunks.lock();
            chunks.map(ChunkKind::Reply, pages, 0, REGIONS, &mut idle)?;
            chunks.set_outstanding(7, Encoding::default());
            drop(chunks);
            assert!(!request.chunks.is_unused() && request.memory.is_lent());
            let theirs = request.clone();
            contend(2, move |number| {
                if number == 0 {
                    theirs.chunks.lock().connection_lost();
                } else {
                    // The task that releases the request.
                    while !theirs.chunks.is_unused() {
                        pause();
                    }
                    let lent = theirs.memory.is_lent();
                    theirs.early.fetch_add(usize::from(lent), Full);
                }
            })?;
            assert!(!request.memory.is_lent());
        }
        assert_eq!(request.early.load(Relaxed), 0);
        Ok(())
    }

    #[test]
    fn a_lost_call_is_counted_until_another_one_is_sent() -> Result {
        let chunks = KBox::pin_init(SlotChunks::new(), GFP_KERNEL)?;
        for expected in 1..4 {
            chunks.lock().set_outstanding(7, Encoding::default());
            assert_eq!(chunks.lock().connection_lost(), expected);
            // No Reply is due any more.
            assert_eq!(chunks.lock().connection_lost(), 0);
        }
        chunks.lock().set_outstanding(8, Encoding::default());
        assert_eq!(chunks.lock().connection_lost(), 1);
        Ok(())
    }

    #[test]
    fn a_reply_to_another_encoding_is_told() -> Result {
        let chunks = KBox::pin_init(SlotChunks::new(), GFP_KERNEL)?;
        let encodings = [(1, 100), (2, 100), (2, 140)];
        for sent in encodings {
            chunks
                .lock()
                .set_outstanding(7, Encoding::new(sent.0, sent.1));
            for now in encodings {
                let is_same = chunks.lock().is_encoded_as(Encoding::new(now.0, now.1));
                assert_eq!(is_same, sent == now);
            }
        }
        Ok(())
    }
}
