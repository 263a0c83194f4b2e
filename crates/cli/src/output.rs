//! What the command prints. A full disk or a reader that has gone is no reason to panic.
//!
//! `print!` and `println!` of this crate are these instead of the standard library's: the first failure is
//! kept, later output is dropped, and [`finish`] turns it into the exit status. `eprintln!` ignores failures,
//! because there is no place left to report them.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// Why standard output failed first.
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

/// Standard output for code that writes to a [`Write`]: what fails is kept, and later output refused.
pub(crate) struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if failed() {
            return Err(io::Error::other("an earlier write has failed"));
        }
        io::stdout().write(bytes).inspect_err(keep_kind)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush().inspect_err(keep_kind)
    }
}

/// Keeps a failure that its caller hears of as well.
fn keep_kind(error: &io::Error) {
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

/// Keeps a failure of standard output for [`finish`].
pub(crate) fn note(error: io::Error) {
    let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    failure.get_or_insert(error);
}

/// Whether standard output has failed. Work whose results could not be shown can be left out.
pub(crate) fn failed() -> bool {
    let failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    failure.is_some()
}

/// The exit status of the command: `code`, if everything that it printed was written. A reader that has gone
/// ends it as any other program, by SIGPIPE and without a word.
pub(crate) fn finish(code: ExitCode) -> ExitCode {
    if let Err(error) = io::stdout().flush() {
        note(error);
    }
    let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    match failure.take() {
        None => code,
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            let signal = signal_hook::consts::SIGPIPE;
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            ExitCode::FAILURE
        }
        Some(error) => {
            complain(format_args!(
                "rkey: standard output cannot be written: {error}"
            ));
            ExitCode::FAILURE
        }
    }
}
