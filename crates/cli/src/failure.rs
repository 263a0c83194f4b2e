//! How the command fails: one line says what went wrong, and one says what to do.

use rkey_kit::settings::LOG;
use std::io::IsTerminal;
use std::process::ExitCode;

/// The advice for an error.
#[derive(Debug)]
pub(crate) struct Hint {
    advice: String,
}

impl std::fmt::Display for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hint: {}", self.advice)
    }
}

/// Adds a hint to an error; `report` prints it on a separate line.
pub(crate) fn hinted(error: impl Into<anyhow::Error>, advice: impl Into<String>) -> anyhow::Error {
    error.into().context(Hint {
        advice: advice.into(),
    })
}

/// Prints an error to standard error, with its hint if it has one, and returns the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let hint = error.downcast_ref::<Hint>();
    let mut causes = error.chain().skip(usize::from(hint.is_some()));
    if let Some(first) = causes.next() {
        eprintln!("rkey: {first}");
    }
    for cause in causes {
        eprintln!("  because {cause}");
    }
    if let Some(hint) = hint {
        eprintln!("{hint}");
    }
    ExitCode::FAILURE
}

/// Sends `tracing` events to standard error, filtered by `RKEY_LOG`; silent if that is unset or invalid.
pub(crate) fn start_logging() {
    let value = LOG.value().ok().flatten();
    if let Some(filter) = value.as_deref().and_then(rkey_kit::log::filter) {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal() && crate::style::wanted())
            .init();
    }
}
