//! Standard output. A full disk or a closed pipe must not cause a panic.
//!
//! This crate's `print!` and `println!` replace the standard library's: they record the first failure and drop later
//! output, and [`finish`] turns the failure into the exit status. `eprintln!` ignores failures, because they could not
//! be reported anywhere.

use parking_lot::Mutex;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// The first failure of standard output.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

macro_rules! print {
    ($($part:tt)*) => { $crate::output::print(format_args!($($part)*)) };
}

macro_rules! println {
    () => { $crate::output::print(format_args!("\n")) };
    ($($part:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($part)*))) };
}

macro_rules! eprintln {
    ($($part:tt)*) => { $crate::output::complain(format_args!($($part)*)) };
}

/// Writes to standard output, unless it has failed before.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    if !failed()
        && let Err(error) = io::stdout().write_fmt(text)
    {
        note(error);
    }
}

/// Standard output for code that writes to a [`Write`]. It records the first failure, and later writes fail.
pub(crate) struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if failed() {
            return Err(io::Error::other("an earlier write failed"));
        }
        io::stdout().write(bytes).inspect_err(record_copy)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush().inspect_err(record_copy)
    }
}

/// Records a failure that is also returned to the caller.
fn record_copy(error: &io::Error) {
    if error.kind() != io::ErrorKind::Interrupted {
        note(match error.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => error.kind().into(),
        });
    }
}

/// Writes a line to standard error.
pub(crate) fn complain(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Records a failure of standard output for [`finish`].
pub(crate) fn note(error: io::Error) {
    let mut failure = FAILURE.lock();
    failure.get_or_insert(error);
}

/// Whether standard output has failed. If so, work whose results are only printed can be skipped.
pub(crate) fn failed() -> bool {
    let failure = FAILURE.lock();
    failure.is_some()
}

/// The exit status of the command: `code`, if all output was written. A closed pipe terminates it like any other program, with SIGPIPE
/// and without a message.
pub(crate) fn finish(code: ExitCode) -> ExitCode {
    if let Err(error) = io::stdout().flush() {
        note(error);
    }
    let mut failure = FAILURE.lock();
    match failure.take() {
        None => code,
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            let signal = signal_hook::consts::SIGPIPE;
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            ExitCode::FAILURE
        }
        Some(error) => {
            complain(format_args!(
                "rkey: cannot write to standard output: {error}"
            ));
            ExitCode::FAILURE
        }
    }
}
