// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Writes the vectors to a folder, one file each, as seeds for the fuzzers.
//!
//! Usage: `corpus FOLDER`; makes `FOLDER/messages` and `FOLDER/private`.

use std::path::{
    Path,
    PathBuf, //
};
use std::{
    env,
    fs,
    io, //
};

use rpcrdma_host_tests::vectors::{
    Vector,
    MESSAGES,
    PRIVATE, //
};

fn write(folder: &Path, vectors: &[Vector]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for vector in vectors {
        fs::write(folder.join(vector.name), vector.bytes())?;
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or_else(|| io::Error::other("usage: corpus FOLDER"))?;
    write(&folder.join("messages"), MESSAGES)?;
    write(&folder.join("private"), PRIVATE)
}
