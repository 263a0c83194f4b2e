//! What all tests of the command need: the program, and its output as text.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program under test; `RKEY_BIN` names another copy of it.
pub(crate) fn program() -> Command {
    let path = std::env::var_os("RKEY_BIN")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_rkey")), PathBuf::from);
    let mut command = Command::new(path);
    command
        .env_remove("RKEY_LOG")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null());
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
