// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Writes the vectors to a directory, one file each, as seeds for the fuzzers.
//!
//! Usage: `corpus FOLDER`; creates `FOLDER/messages`, `FOLDER/private` and, for version 2,
//! `FOLDER/messages2`, `FOLDER/properties` and `FOLDER/negotiate`.

use std::{
    env,
    fs,
    io,
    path::{
        Path,
        PathBuf, //
    }, //
};

use rpcrdma_host_tests::oracle::seeds;
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

/// Writes the messages of version 2, each converted by `form`.
fn write2(folder: &Path, form: impl Fn(&[u8]) -> Vec<u8>) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, bytes) in seeds() {
        fs::write(folder.join(name), form(&bytes))?;
    }
    Ok(())
}

/// Returns a message as the first of a connection: with its length before it.
fn first(bytes: &[u8]) -> Vec<u8> {
    let len = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    let mut out = vec![len];
    out.extend(bytes.iter().take(usize::from(len)));
    out
}

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or_else(|| io::Error::other("usage: corpus FOLDER"))?;
    write(&folder.join("messages"), MESSAGES)?;
    write(&folder.join("private"), PRIVATE)?;
    write2(&folder.join("messages2"), |bytes| bytes.to_vec())?;
    write2(&folder.join("properties"), |bytes| {
        bytes.get(16..).unwrap_or_default().to_vec()
    })?;
    write2(&folder.join("negotiate"), first)
}
