//! Runs a program that is compiled and linked for DAT 1.2.

use rkey_kit::delivery::{DAT1, UDAPL};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory that is removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles the program and links it with our library under the name that linkers look for.
fn compile(folder: &Path) -> PathBuf {
    let own = std::env::current_exe().expect("a test has a path");
    let beside = own.parent().expect("the file has a directory");
    for front_end in [DAT1, UDAPL] {
        let library = front_end
            .find(beside)
            .expect("cargo builds the libraries for the tests");
        front_end
            .put_into(folder, &library)
            .expect("links can be made");
    }
    std::fs::write(folder.join("dat1.h"), include_str!("programs/dat1.h")).expect("room");
    let source = folder.join("window.c");
    std::fs::write(&source, include_str!("programs/window.c")).expect("room");
    let program = folder.join("window");
    let mut compiler = Command::new("gcc");
    compiler
        .args(["-std=gnu11", "-O1", "-Wall", "-o"])
        .arg(&program)
        .arg(&source)
        .arg("-L")
        .arg(folder)
        .arg("-ldat");
    let output = compiler.output().expect("gcc is installed");
    assert!(output.status.success(), "{output:?}");
    program
}

/// Proves: DA-001, DA-016, DA-061
#[test]
fn a_program_for_dat_1_2_binds_with_seven_arguments() {
    let folder = std::env::temp_dir().join(format!("rkey-dat1-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("cannot create a temporary directory");
    let folder = Folder(folder);
    let program = compile(&folder.0);
    // The program finds the libraries by an absolute path, or by a relative one before it changes its directory.
    for (path, arguments) in [(&*folder.0, &[][..]), (Path::new("."), &["/"])] {
        let mut command = Command::new("timeout");
        command
            .arg("140")
            .arg(&program)
            .args(arguments)
            .current_dir(&folder.0)
            .env("LD_LIBRARY_PATH", path);
        let output = command.output().expect("it can be started");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.ends_with("done\n"),
            "{output:?}"
        );
    }
}
