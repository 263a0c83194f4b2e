//! `rkey capture`: the program gets the name of the file.

mod common;

use common::{program, text};

#[test]
fn the_program_gets_the_absolute_name_of_the_capture_file() {
    let folder = std::env::temp_dir().canonicalize().unwrap();
    let mut command = program();
    command.current_dir(&folder);
    command.args(["capture", "some-%p.pcap", "--", "printenv"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let wanted = format!("RKEY_CAPTURE={}/some-%p.pcap\n", folder.display());
    assert!(text(&output.stdout).contains(&wanted), "{output:?}");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn a_capture_file_that_cannot_be_written_is_refused() {
    for (file, why) in [
        ("/nowhere/at/all.pcap", "its directory does not exist"),
        ("/", "its directory does not exist"),
        ("/tmp", "it is a directory"),
    ] {
        let output = program().args(["capture", file, "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains(why), "{output:?}");
    }
}
