//! Output that fails: a full disk, a reader that has exited.

mod common;

use common::{program, text};
use std::fs::File;
use std::process::{Output, Stdio};

const COMMANDS: &[&[&str]] = &[
    &["--help"],
    &["--version"],
    &["info"],
    &["info", "--json"],
    &["ls"],
    &["ls", "--json"],
    &["explain", "--reasons"],
    &["demo", "-q"],
    &["demo", "--json"],
    &[
        "bench", "--quick", "--sizes", "8", "--modes", "single", "write",
    ],
];

/// The lines of standard error except notes of `rkey ls` about other processes, which another test may start.
fn own_lines(err: &str) -> impl Iterator<Item = &str> {
    err.lines()
        .filter(|line| !line.contains("runs another version of rkey"))
}

/// Every command that prints reports that its output was lost, and fails.
#[test]
fn output_to_a_full_disk_is_an_error() {
    for words in COMMANDS {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = program().args(*words).stdout(full).output().unwrap();
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {err}");
        assert!(
            err.contains("cannot write to standard output: No space left on device"),
            "{words:?}: {err}"
        );
        assert_eq!(own_lines(&err).count(), 1, "{words:?}: {err}");
    }
}

/// A full standard error does not change how a command ends.
#[test]
fn a_full_standard_error_does_not_change_the_exit_status() {
    let end = |words: &[&str], full: bool| {
        let stderr = if full {
            Stdio::from(File::options().write(true).open("/dev/full").unwrap())
        } else {
            Stdio::null()
        };
        let mut command = program();
        command.args(words).stderr(stderr).stdout(Stdio::null());
        command.status().unwrap().code()
    };
    for words in [
        &["ls", "4194304"][..],
        &["run", "no-such-program"],
        &["dmo"],
    ] {
        assert_eq!(end(words, true), end(words, false), "{words:?}");
    }
}

/// `rkey demo | head` ends like any other program, without a message.
#[test]
fn every_command_ends_silently_when_its_output_pipe_is_closed() {
    use std::os::unix::process::ExitStatusExt;
    for words in COMMANDS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = program();
        command.args(*words).stdout(writer).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        drop(command);
        let output: Output = child.wait_with_output().unwrap();
        let pipe = rustix::process::Signal::PIPE.as_raw();
        assert_eq!(output.status.signal(), Some(pipe), "{words:?}: {output:?}");
        let err = text(&output.stderr);
        assert_eq!(own_lines(&err).next(), None, "{words:?}");
    }
}
