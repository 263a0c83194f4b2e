//! The loader identifies the library by its file, so a process that uses it under several names loads it once.

use rkey_kit::delivery::{FABRIC, RDMACM, UDAPL, VERBS};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    /// Creates a directory with the library under all its names.
    fn new(test: &str) -> Self {
        let own = std::env::current_exe().expect("a test has a path");
        let beside = own.parent().expect("the file has a directory");
        let folder = std::env::temp_dir().join(format!("rkey-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a directory for temporary files can be made");
        for front_end in [VERBS, RDMACM, FABRIC, UDAPL] {
            let library = front_end
                .find(beside)
                .expect("cargo builds the library for its tests");
            front_end
                .put_into(&folder, &library)
                .expect("links can be made");
        }
        Self(folder)
    }

    fn compile(&self, name: &str, source: &str, words: &[&str]) -> PathBuf {
        let file = self.0.join(format!("{name}.c"));
        std::fs::write(&file, source).expect("a file can be written");
        let result = self.0.join(name);
        let mut compiler = Command::new("gcc");
        compiler
            .args(["-std=gnu11", "-Wall", "-Werror", "-o"])
            .args([&result, &file])
            .args(words);
        let output = compiler.output().expect("`cargo xtask test` installs gcc");
        assert!(output.status.success(), "{output:?}");
        result
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn load(folder: &Folder, program: &Path, libraries: &[&str], preload: bool) -> String {
    let mut command = Command::new(program);
    command
        .args(libraries)
        .current_dir(&folder.0)
        .env("LD_LIBRARY_PATH", &folder.0);
    if preload {
        command.env("LD_PRELOAD", folder.0.join(VERBS.file));
    }
    let output = command.output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{libraries:?}: {output:?}");
    text
}

/// Loads the library under its names, in every order, and another library that is linked with libibverbs.
#[test]
fn a_process_loads_the_library_once() {
    let folder = Folder::new("loading");
    let loader = folder.compile("loader", include_str!("programs/loader.c"), &[]);
    let user = include_str!("programs/user.c");
    folder.compile("user.so", user, &["-shared", "-fPIC", "-libverbs"]);
    let names = [
        "libibverbs.so.1",
        "librdmacm.so.1",
        "./librkey-fi.so",
        "./libdaplrkey.so.2",
        "./user.so",
    ];
    for first in names {
        for second in names {
            for third in names {
                let text = load(&folder, &loader, &[first, second, third], false);
                assert_eq!(text, "1 copy\n", "{first} {second} {third}");
            }
        }
    }
    let text = load(&folder, &loader, &names, true);
    assert_eq!(text, "1 copy\n");
}

/// Even if our library is preloaded, other providers must use their own symbols of the same names.
#[test]
fn another_provider_uses_its_own_symbols() {
    let folder = Folder::new("others");
    let loader = folder.compile("loader", include_str!("programs/loader.c"), &[]);
    let map = folder.0.join("other.map");
    std::fs::write(&map, "OTHER_1 { global: *; };").expect("a file can be written");
    let script = format!("-Wl,--version-script={}", map.display());
    let other = include_str!("programs/other.c");
    folder.compile("other.so", other, &["-shared", "-fPIC", &script]);
    let text = load(&folder, &loader, &["./other.so"], true);
    assert_eq!(text, "own symbols\n1 copy\n");
}
