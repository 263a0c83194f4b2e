//! Writes the initial inputs of each fuzz target into a directory for libFuzzer: `FOLDER/TARGET/seed-N`.

use rkey_conformance::entries;
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or_else(|| std::io::Error::other("usage: write_seeds FOLDER"))?;
    for entry in entries::ALL {
        let folder = folder.join(entry.name);
        std::fs::create_dir_all(&folder)?;
        for (number, input) in entry.inputs().iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), input)?;
        }
    }
    Ok(())
}
