//! UCX's registration cache, measured in turn with rkey's.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The program that measures UCX's cache.
pub(crate) struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Peer {
    /// Compiles and starts the peer.
    ///
    /// # Errors
    /// Says what is missing.
    pub(crate) fn start() -> Result<Self, String> {
        let header = "/usr/include/ucs/memory/rcache.h";
        if !Path::new(header).exists() {
            return Err(format!("{header} is missing: install libucx-dev"));
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let program = folder.join("ucx-rcache");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peer/ucx.c");
        let mut compile = Command::new("cc");
        compile
            .args(["-std=gnu11", "-O2", "-o"])
            .args([&program, &source]);
        compile.args(["-lucs", "-lucm", "-lpthread"]);
        match compile.status() {
            Ok(status) if status.success() => {}
            other => return Err(format!("cc cannot compile the peer: {other:?}")),
        }
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let from = from.ok_or("the peer's output is not a pipe")?;
        Ok(Self {
            child,
            to,
            from: BufReader::new(from),
        })
    }

    /// Measures one lookup, in nanoseconds: "hit", "threads" (hits by two threads, each on its own buffer), or "miss" (including the
    /// invalidation of the entry that it created).
    pub(crate) fn measure(&mut self, what: &str) -> f64 {
        let mut line = String::new();
        if let Some(to) = &mut self.to {
            writeln!(to, "{what}").expect("the peer runs");
        }
        self.from.read_line(&mut line).expect("the peer runs");
        line.trim().parse().expect("the peer prints a number")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The peer exits at the end of its input.
        self.to = None;
        let _ = self.child.wait();
    }
}
