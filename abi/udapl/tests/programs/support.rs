//! Compiles programs, and runs them with a registry that names our provider.

use rkey_kit::dat_conf::{self, VARIABLE};
use rkey_kit::delivery::{self, FRONT_ENDS, FrontEnd, UDAPL};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a program may take before it counts as hanging. Most take a fraction of a second, but test machines are
/// busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// A directory with the provider, the registry, and the output of programs.
pub(crate) struct Stage {
    folder: PathBuf,
    /// Whether the directory has all front ends.
    has_all: bool,
}

impl Stage {
    /// A stage with the provider only.
    pub(crate) fn new(test: &str) -> Self {
        Self::with(test, &[UDAPL])
    }

    /// A stage with all front ends.
    pub(crate) fn with_all(test: &str) -> Self {
        Self::with(test, FRONT_ENDS)
    }

    fn with(test: &str, front_ends: &[FrontEnd]) -> Self {
        let own = std::env::current_exe().expect("a test has a path");
        let beside = own.parent().expect("the file has a directory");
        let folder = rkey_harness::temporary_folder(&format!("rkey-dat-{test}"));
        for front_end in front_ends {
            let library = front_end
                .find(beside)
                .expect("cargo builds the libraries for the tests");
            front_end
                .put_into(&folder, &library)
                .expect("links can be made");
        }
        dat_conf::put_into(&folder).expect("a file can be written");
        let has_all = front_ends.len() > 1;
        Self { folder, has_all }
    }

    /// A file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes a C program and compiles it with these libraries.
    pub(crate) fn compile(&self, name: &str, source: &str, libraries: &[&str]) -> PathBuf {
        let header = self.file("world.h");
        fs::write(header, include_str!("world.h")).expect("a file can be written");
        let (file, program) = (self.file(&format!("{name}.c")), self.file(name));
        fs::write(&file, source).expect("a file can be written");
        let mut compiler = Command::new("gcc");
        compiler
            .args(["-std=gnu11", "-O1", "-Wall", "-Wno-unused-function"])
            .arg("-o")
            .arg(&program)
            .arg(&file)
            .args(libraries);
        self.run(compiler);
        program
    }

    /// A command that finds the provider.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let set = delivery::environment(&self.folder, |_| None);
        command
            .envs(
                set.into_iter()
                    .filter(|(name, _)| self.has_all || *name == VARIABLE),
            )
            .env_remove("RKEY_LOG");
        command
    }

    /// Runs a command, which must succeed, and returns its output.
    pub(crate) fn run(&self, mut command: Command) -> String {
        let said = self.file("said");
        let file = File::create(&said).expect("a file can be made");
        let errors = file.try_clone().expect("a descriptor is free");
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let mut child = command.spawn().unwrap_or_else(|error| {
            panic!("{error}: {command:?}; `cargo xtask test` installs what the tests need")
        });
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("the child can be awaited") {
                break Some(status);
            }
            if started.elapsed() > PATIENCE {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = String::from_utf8_lossy(&fs::read(&said).unwrap_or_default()).into_owned();
        assert!(
            status.is_some_and(|status| status.success()),
            "{command:?}: {status:?} (None: it hangs)\n{text}"
        );
        text
    }

    /// Runs a check of a program.
    pub(crate) fn check(&self, program: &Path, name: &str) {
        let mut command = self.command(program);
        command.arg(name);
        let text = self.run(command);
        assert!(text.ends_with("done\n"), "{name}: {text}");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
