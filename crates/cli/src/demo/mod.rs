//! `rkey demo`: the main job, end to end, in two processes.
//!
//! This process plays the *visitor*. It starts a second copy of the program, the *owner*, which
//! registers memory and hands out keys; the two know each other by an address only. The visitor
//! walks through everything the device does, checks the data after every step, then makes ten
//! classic mistakes, each of which has to be refused with an explanation that names it.
//!
//! | file | what it is |
//! | --- | --- |
//! | `owner` | the process whose memory is used |
//! | `ask` | what the visitor asks the owner, and the answers |
//! | `tour` | the steps that have to work |
//! | `mistakes` | the steps that have to be refused |
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
    let device = rkey::Device::open().map_err(|error| {
        hinted(
            error,
            "`rkey info` says what this machine allows and why not",
        )
    })?;
    let listener = device.listen("127.0.0.1:0")?;
    report.say(&format!(
        "This process ({}) is the visitor. It starts a second process, the owner, whose memory it \
         will use.",
        std::process::id()
    ));
    let mut child = OwnerProcess::start(listener.address())?;
    let connection = listener
        .accept_timeout(Duration::from_secs(10))
        .context("the second process did not connect")?;
    let owner = Owner::greet(connection)?;
    report.say(&format!(
        "The owner is process {}, user {}. They talk through {}.\n",
        owner.connection.peer().pid,
        owner.connection.peer().uid,
        owner.address
    ));
    tour::walk(&device, &owner, report);
    mistakes::make_all(&device, &owner, report);
    tour::farewell(&owner, report);
    report.row(
        "the owner's process ended by itself, without an error",
        "",
        || child.finish(),
    );
    Ok(())
}

/// The second process; it ends with this value at the latest.
struct OwnerProcess(Child);

impl OwnerProcess {
    fn start(address: SocketAddr) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program cannot be found again")?;
        let child = Command::new(program)
            .args(["demo", "--owner", &address.to_string()])
            .spawn()
            .context("the second process cannot be started")?;
        Ok(Self(child))
    }

    /// Waits for its end.
    fn finish(&mut self) -> anyhow::Result<String> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(status) = self.0.try_wait()? {
                anyhow::ensure!(status.success(), "it ended with {status}");
                return Ok(status.to_string());
            }
            anyhow::ensure!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for OwnerProcess {
    fn drop(&mut self) {
        // Already gone when the demo went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
