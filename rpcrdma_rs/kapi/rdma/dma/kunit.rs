// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: buffers that are mapped for a device.

use super::*;
use crate::kapi::fixture::pd;
use kernel::page::PAGE_SIZE;

#[kunit_tests(rpcrdma_dma)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_zero_and_has_its_length() -> Result {
        let pd = pd()?;
        for len in [1, 63, PAGE_SIZE, PAGE_SIZE + 1, 4 * PAGE_SIZE] {
            let mut buf = DmaBuf::new(&pd, len, DataDirection::ToDevice)?;
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_slice().len(), len);
            assert!(buf.as_slice().iter().all(|b| *b == 0));
            buf.as_mut_slice().fill(0x5a);
            assert!(buf.as_slice().iter().all(|b| *b == 0x5a));
        }
        let none = DmaBuf::new(&pd, 0, DataDirection::ToDevice);
        assert!(none.is_err_and(|e| e == EINVAL));
        Ok(())
    }

    #[test]
    fn only_ranges_inside_a_buffer_get_an_sge() -> Result {
        let pd = pd()?;
        let mut buf = DmaBuf::new(&pd, 100, DataDirection::FromDevice)?;
        for (start, end) in [(0, 0), (0, 1), (0, 100), (99, 100), (100, 100), (30, 31)] {
            let sge = buf.sge(start..end)?;
            assert_eq!(sge.addr, buf.addr + start as u64);
            assert_eq!(sge.length as usize, end - start);
            assert_eq!(sge.lkey, pd.lkey());
        }
        #[expect(clippy::reversed_empty_ranges, reason = "nor is that inside")]
        let outside = [
            0..101,
            100..101,
            101..101,
            50..49,
            1..0,
            0..usize::MAX,
            usize::MAX..usize::MAX,
            usize::MAX..0,
        ];
        for range in outside {
            assert!(buf.sge(range.clone()).is_err_and(|e| e == EINVAL));
            // This does nothing.
            buf.sync_for_device(range.clone());
            buf.sync_for_cpu(range);
        }
        Ok(())
    }
}
