// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: directories of objects that live long, or shorter than it takes to create a directory.

use super::*;
use crate::kapi::fixture::long_pause;

static OBJECTS: Parent = Parent::new(c"objects");
static PARENTS: [&Parent; 1] = [&OBJECTS];

/// The number of objects of each lifetime.
const OBJECTS_EACH: u64 = 100;
/// Pauses after which a directory certainly exists.
const MAX_PAUSES: u32 = 1000;

struct Nothing;

impl Status for Nothing {
    fn show(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// Creates the directory of object `number`; returns what its work uses, too.
fn create(number: u64, status: &Arc<Nothing>) -> (StatusDir<Nothing>, Arc<Files<Nothing>>) {
    let dir = StatusDir::new(&OBJECTS, number, status.clone());
    let files = dir.0.clone();
    assert!(files.is_some());
    (dir, files.unwrap())
}

fn exists(files: &Files<Nothing>) -> bool {
    !files.dir.load(Acquire).is_null()
}

#[kunit_tests(rpcrdma_debugfs)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_exists_until_its_object_ends() -> Result {
        let registration = Registration::new(c"rpcrdma_kunit", &PARENTS);
        let queue = OwnQueue::new(c"rpcrdma_kunit")?;
        let status = Arc::new(Nothing, GFP_KERNEL)?;
        let (dir, files) = create(1, &status);
        for _ in 0..MAX_PAUSES {
            if exists(&files) {
                break;
            }
            long_pause();
        }
        assert!(exists(&files));
        drop(dir);
        drop(queue);
        assert!(!exists(&files));
        drop(files);
        assert!(Arc::into_unique_or_drop(status).is_some());
        drop(registration);
        Ok(())
    }

    #[test]
    fn no_directory_is_left_of_an_object_that_ends_at_once() -> Result {
        let registration = Registration::new(c"rpcrdma_kunit", &PARENTS);
        let queue = OwnQueue::new(c"rpcrdma_kunit")?;
        let status = Arc::new(Nothing, GFP_KERNEL)?;
        let mut all = KVec::new();
        for turns in [0, 100, 10_000] {
            for number in 0..OBJECTS_EACH {
                let (dir, files) = create(turns * OBJECTS_EACH + number, &status);
                for _ in 0..turns {
                    core::hint::spin_loop();
                }
                drop(dir);
                all.push(files, GFP_KERNEL)?;
            }
        }
        drop(queue);
        assert!(!all.iter().any(|files| exists(files)));
        drop(all);
        assert!(Arc::into_unique_or_drop(status).is_some());
        drop(registration);
        Ok(())
    }
}
