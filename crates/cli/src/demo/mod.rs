//! `rkey demo`: demonstrates the device with two processes.
//!
//! This process plays the *visitor*. It starts a second copy of the program, the *owner*, which registers memory and issues keys;
//! the visitor's address is all that they share. The visitor exercises the features of the device, checks the data after every
//! step, and then makes ten classic mistakes, each of which must be refused with an explanation that names it.
//!
//! | file | what it is |
//! | --- | --- |
//! | `owner` | the process whose memory is used |
//! | `ask` | the messages between the two |
//! | `tour` | the steps that must work |
//! | `mistakes` | the steps that must be refused |
//! | `report` | rows, and the table at the end |

mod ask;
mod mistakes;
mod owner;
mod report;
mod tour;

use crate::failure::hinted;
use anyhow::Context;
use ask::Owner;
use clap::Args;
use report::Report;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

/// How long the owner may take to connect and to exit. It takes milliseconds, but machines can be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of `rkey demo`.
#[derive(Args, Debug, Clone)]
pub(crate) struct DemoArgs {
    /// Print only the table at the end, not the steps and explanations.
    #[arg(long, short)]
    quiet: bool,
    /// Print the rows as JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Play the owner for the demo that listens at this address (used by the demo itself).
    #[arg(long, hide = true, value_name = "ADDRESS")]
    owner: Option<SocketAddr>,
}

/// Runs `rkey demo`: success only if every row is green.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    if let Some(address) = args.owner {
        owner::run(address)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report::new(!args.quiet && !args.json);
    visit(&mut report)?;
    if args.json {
        println!("{}", report.json()?);
    } else {
        report.print();
    }
    Ok(if report.all_green() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Starts the owner and walks through all steps.
fn visit(report: &mut Report) -> anyhow::Result<()> {
    let device = rkey::Device::open()
        .map_err(|error| hinted(error, "`rkey info` shows what this machine allows, and why"))?;
    let listener = device.listen("127.0.0.1:0")?;
    report.say(&format!(
        "This process ({}) is the visitor. It starts a second process, the owner, whose memory it \
         will use.",
        std::process::id()
    ));
    let mut child = OwnerProcess::start(listener.address())?;
    let connection = listener
        .accept_timeout(PATIENCE)
        .context("the second process did not connect")?;
    let owner = Owner::greet(connection)?;
    report.say(&format!(
        "The owner is process {}, user {}. They communicate through {}.\n",
        owner.connection.peer().pid,
        owner.connection.peer().uid,
        owner.address
    ));
    tour::walk(&device, &owner, report);
    mistakes::make_all(&device, &owner, report);
    tour::farewell(&owner, report);
    report.row("the owner's process ended without an error", "", || {
        child.finish()
    });
    Ok(())
}

/// The second process. Dropping the value kills it.
struct OwnerProcess(Child);

impl OwnerProcess {
    fn start(address: SocketAddr) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let child = Command::new(program)
            .args(["demo", "--owner", &address.to_string()])
            .spawn()
            .context("cannot start the second process")?;
        Ok(Self(child))
    }

    /// Waits until the owner's process has exited.
    fn finish(&mut self) -> anyhow::Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait()? {
                anyhow::ensure!(status.success(), "the owner's process ended with {status}");
                return Ok(status.to_string());
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "the owner's process is still running after {} s",
                PATIENCE.as_secs()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for OwnerProcess {
    fn drop(&mut self) {
        // After a successful demo, the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
