//! The program of `rkey run`: where it is, whether it can load our libraries, and why it does not start.

use crate::similar;
use rustix::fs::{Access, access};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The search path if PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// The set-user-ID and set-group-ID bits.
const SET_ID: u32 = 0o6000;
/// How much of the first line of a script the kernel reads.
const FIRST_LINE: usize = 256;

/// Finds a program as `execvp` does.
pub(super) fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    folders()
        .map(|folder| folder.join(program))
        .find(|path| path.is_file() && access(path, Access::EXEC_OK).is_ok())
}

fn folders() -> impl Iterator<Item = PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    std::env::split_paths(&path).collect::<Vec<_>>().into_iter()
}

/// Why the program runs but cannot use the device, in a sentence.
pub(super) fn obstacle(path: &Path) -> Option<String> {
    let name = path.display();
    if let Ok(FileStart::Script(interpreter)) = FileStart::of(path) {
        // One level is enough: an interpreter that is a script itself is rare.
        let obstacle = obstacle_of_binary(&interpreter)?;
        return Some(format!(
            "{name} is a script, and its interpreter {} {obstacle}",
            interpreter.display()
        ));
    }
    obstacle_of_binary(path).map(|obstacle| format!("{name} {obstacle}"))
}

fn obstacle_of_binary(path: &Path) -> Option<&'static str> {
    let Ok(FileStart::Elf(elf)) = FileStart::of(path) else {
        return None;
    };
    let own = FileStart::of(Path::new("/proc/self/exe"));
    if let Ok(FileStart::Elf(own)) = own
        && own.machine != elf.machine
    {
        return Some("is built for a different processor than rkey's libraries");
    }
    if elf.loader.is_none() {
        return Some("is statically linked, so it loads no shared libraries");
    }
    let file = fs::metadata(path).ok()?;
    let changes_user =
        file.mode() & SET_ID != 0 && file.uid() != rustix::process::geteuid().as_raw();
    changes_user.then_some(
        "is set-user-ID or set-group-ID, so the system does not load our libraries into it",
    )
}

/// Why a program did not start, with a hint.
pub(super) fn why_not(program: &OsStr, error: &io::Error) -> (String, Option<String>) {
    let name = program.to_string_lossy();
    if error.kind() == io::ErrorKind::NotFound {
        return match find(program).filter(|path| path.exists()) {
            Some(path) => (missing_helper(&path), None),
            None => missing(program),
        };
    }
    let path = find(program);
    if path.as_deref().is_some_and(Path::is_dir) {
        return (format!("{name} is a directory"), None);
    }
    let advice = (error.kind() == io::ErrorKind::PermissionDenied)
        .then(|| format!("if it is a program, make it executable: chmod +x {name}"));
    (format!("{name} cannot be run: {error}"), advice)
}

/// The program exists, but its interpreter or loader does not.
fn missing_helper(path: &Path) -> String {
    let (what, helper) = match FileStart::of(path) {
        Ok(FileStart::Script(interpreter)) => ("interpreter", interpreter),
        Ok(FileStart::Elf(Elf {
            loader: Some(loader),
            ..
        })) => ("loader", loader),
        _ => {
            return format!(
                "{} cannot be run: a file that it needs is missing",
                path.display()
            );
        }
    };
    format!(
        "{} cannot be run: its {what} {} does not exist",
        path.display(),
        helper.display()
    )
}

fn missing(program: &OsStr) -> (String, Option<String>) {
    let name = program.to_string_lossy();
    if program.as_bytes().contains(&b'/') {
        let path = Path::new(program);
        let folder = path.parent().unwrap_or(Path::new("/"));
        let last = path.file_name().unwrap_or_default().to_string_lossy();
        let meant = names_in(folder);
        let meant = similar::closest(&last, meant.iter().map(|name| (&**name, name)));
        let advice = meant.map(|name| format!("did you mean {}?", folder.join(name).display()));
        return (format!("no such program: {name}"), advice);
    }
    let what = format!("no program {name} in PATH");
    let here = Path::new(".").join(program);
    if here.is_file() {
        return (what, Some(format!("did you mean {}?", here.display())));
    }
    let all: Vec<String> = folders().flat_map(|folder| names_in(&folder)).collect();
    let meant = similar::closest(&name, all.iter().map(|name| (&**name, name)));
    (what, meant.map(|name| format!("did you mean {name}?")))
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The beginning of a program file.
#[derive(Debug, PartialEq, Eq)]
enum FileStart {
    /// With the path of its interpreter.
    Script(PathBuf),
    Elf(Elf),
    Other,
}

/// The parts of an ELF header that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    /// Word size and processor.
    machine: (u8, u16),
    /// The program that loads its libraries.
    loader: Option<PathBuf>,
}

impl FileStart {
    fn of(path: &Path) -> io::Result<Self> {
        // Linkers put the program headers first, followed by the loader's name.
        let mut bytes = Vec::new();
        let mut file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(Self::Other);
        }
        Read::by_ref(&mut file)
            .take(1 << 16)
            .read_to_end(&mut bytes)?;
        Ok(Self::read(&bytes))
    }

    fn read(bytes: &[u8]) -> Self {
        if let Some(line) = bytes.strip_prefix(b"#!") {
            let line = &line[..line.len().min(FIRST_LINE)];
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let mut words = line.split(u8::is_ascii_whitespace);
            let word = words.find(|word| !word.is_empty()).unwrap_or_default();
            return Self::Script(PathBuf::from(OsStr::from_bytes(word)));
        }
        Elf::read(bytes).map_or(Self::Other, Self::Elf)
    }
}

impl Elf {
    /// Reads the header and the program headers (elf(5)); of a 32-bit file, reads only the header.
    fn read(bytes: &[u8]) -> Option<Self> {
        const LOADER: u32 = 3; // PT_INTERP
        if bytes.get(..4)? != b"\x7fELF" || bytes.get(5)? != &1 {
            return None;
        }
        let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| {
            let value = u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?);
            usize::try_from(value).ok()
        };
        let (class, machine) = (*bytes.get(4)?, half(18)?);
        let mut elf = Self {
            machine: (class, machine),
            loader: None,
        };
        if class != 2 {
            return Some(elf);
        }
        let (start, size, count) = (long(32)?, usize::from(half(54)?), usize::from(half(56)?));
        for index in 0..count {
            let at = start.checked_add(index * size)?;
            if at >= bytes.len() {
                return None;
            }
            if word(at)? == LOADER {
                let (from, length) = (long(at + 8)?, long(at + 32)?);
                let name = bytes.get(from..from.checked_add(length)?)?;
                let name = name.strip_suffix(&[0]).unwrap_or(name);
                elf.loader = Some(PathBuf::from(OsStr::from_bytes(name)));
            }
        }
        Some(elf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elf_and_script_headers_are_read() {
        let shell = find(OsStr::new("sh")).unwrap();
        let Ok(FileStart::Elf(elf)) = FileStart::of(&shell) else {
            panic!("{} is not an ELF file", shell.display());
        };
        assert!(elf.loader.is_some_and(|loader| loader.exists()));
        assert_eq!(obstacle(&shell), None);
        let script = FileStart::read(b"#! /usr/bin/env  python3\nprint()\n");
        assert_eq!(script, FileStart::Script("/usr/bin/env".into()));
        assert_eq!(FileStart::read(b""), FileStart::Other);
        assert_eq!(FileStart::read(b"\x7fELF\x02\x01"), FileStart::Other);
    }

    /// Damaged headers do not cause a panic.
    #[test]
    fn damaged_elf_headers_cause_no_panic() {
        let good = fs::read("/proc/self/exe").unwrap();
        let good = &good[..good.len().min(1 << 12)];
        for at in 0..200.min(good.len()) {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.to_vec();
                bad[at] = value;
                let _ = FileStart::read(&bad);
                let _ = FileStart::read(&bad[..at]);
            }
        }
    }
}
