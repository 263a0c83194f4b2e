//! Checks that clippy refuses the code in `samples/`, with the lints of the workspace, those that
//! [`roots`](super::roots) requires, and the names in `clippy.toml`.

use super::roots;
use cargo_metadata::diagnostic::Diagnostic;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Line and lint.
type Refused = BTreeSet<(usize, String)>;

/// `-W` or `-A` for each lint of clippy in the workspace's manifest.
fn of_the_workspace(root: &Path) -> Vec<String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("cannot read Cargo.toml");
    let table = manifest.split("[workspace.lints.clippy]\n").nth(1);
    let lines = table.expect("lints").lines().take_while(|l| !l.is_empty());
    let levels = lines.filter_map(|line| line.split_once(" = "));
    let flag = |(name, level): (&str, &str)| match level {
        "\"warn\"" => format!("-Wclippy::{name}"),
        "\"allow\"" => format!("-Aclippy::{name}"),
        _ => panic!("the lint {name} has the unexpected level {level}"),
    };
    levels.map(flag).collect()
}

/// The lines that clippy refuses in a sample, as it would in a crate of `folder`, whose configuration is in
/// `configuration`.
fn refused(root: &Path, sample: &str, folder: &str, configuration: &str) -> Refused {
    let out = std::env::temp_dir().join(format!("rkey-sample-{}-{sample}", std::process::id()));
    fs::create_dir_all(&out).expect("cannot create the directory");
    let mut command = Command::new("clippy-driver");
    command
        .args(["--edition", "2024", "--crate-type", "lib"])
        .args(["--emit", "metadata", "--error-format", "json"])
        .args(of_the_workspace(root))
        .args(roots::required(folder).iter().map(|l| format!("-W{l}")))
        .arg(root.join("xtask/samples").join(sample))
        .arg("--out-dir")
        .arg(&out)
        .env("CLIPPY_CONF_DIR", root.join(configuration));
    let outcome = command.output().expect("cannot start clippy-driver");
    let _ = fs::remove_dir_all(&out);
    let said = String::from_utf8(outcome.stderr).expect("clippy's output is not UTF-8");
    assert!(outcome.status.success(), "{said}");
    let messages = said.lines().map(|line| {
        let read: Result<Diagnostic, _> = serde_json::from_str(line);
        read.unwrap_or_else(|error| panic!("{error}: {line}"))
    });
    messages
        .filter(|message| !message.spans.is_empty())
        .map(|message| {
            let lint = message.code.map_or(message.message, |code| code.code);
            let lint = lint.trim_start_matches("clippy::").to_owned();
            (message.spans[0].line_start, lint)
        })
        .collect()
}

/// The lints that the comments of a sample name.
fn wanted(root: &Path, sample: &str) -> Refused {
    let text = fs::read_to_string(root.join("xtask/samples").join(sample))
        .expect("cannot read the sample");
    let lines = text.lines().enumerate();
    let marked = lines.filter_map(|(index, line)| Some((index + 1, line.split_once("//~ ")?.1)));
    marked
        .flat_map(|(line, lints)| lints.split(' ').map(move |lint| (line, lint.to_owned())))
        .collect()
}

#[test]
fn clippy_refuses_the_samples() {
    let root = crate::root();
    for (sample, folder, configuration) in [
        ("library.rs", "abi/verbs/", "."),
        ("sans_io.rs", "crates/core/", "crates/core"),
    ] {
        let wanted = wanted(&root, sample);
        assert!(!wanted.is_empty());
        assert_eq!(
            refused(&root, sample, folder, configuration),
            wanted,
            "{sample}"
        );
    }
}
