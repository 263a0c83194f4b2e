//! Debian's uDAPL programs (`dtest` and related programs, and `dapltest`) over our provider, which the unmodified
//! `libdat2.so.2` loads. Each runs in two processes, as root and as an ordinary user.
//!
//! Their exit codes do not show whether they succeeded, so [`judge`] reads what they print. The programs use fixed ports, so only one
//! pair runs at a time.

mod cases;
mod scene;

use crate::folder::{library_into, open_up};
use anyhow::Result;
use cases::{ALONE, Case, PORT, SCENES};
use rkey_harness::ports::Turn;
use rkey_harness::{Report, Session, UID, process, testbin};
use scene::{Place, Said};
use std::fs;
use std::time::Duration;

/// The name of the adapter.
const IA: &str = "rkey-lo";
/// How long a run may take. It takes seconds, but longer on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// The stage.
///
/// # Errors
/// The provider cannot be built, or a program does not start.
pub fn tests(session: &Session<'_>) -> Result<Report> {
    let folder = session.scratch.join("udapl");
    let library = folder.join("lib/libdaplrkey.so.2");
    let names = ["libdaplrkey.so.2"];
    let built = testbin::build_all(session.root)?;
    library_into(&built, &folder.join("lib"), &names)?;
    let entry = format!(
        "{IA} u2.0 nonthreadsafe default {} dapl.2.0 \"lo 0\" \"\"\n",
        library.display()
    );
    fs::write(folder.join("dat.conf"), entry)?;
    open_up(&session.scratch)?;
    open_up(&folder)?;
    let _turn = Turn::take(&PORT.to_string(), 2 * LIMIT)?;
    let mut users = vec![None];
    if process::is_root() {
        users.push(Some(UID));
    }
    let mut report = Report {
        passed: 0,
        failures: Vec::new(),
        note: String::new(),
        skipped: false,
    };
    for user in users {
        let place = Place::new(&folder, user);
        let who = user.map_or("as this user".to_owned(), |uid| format!("as uid {uid}"));
        for scene in SCENES {
            for (case, said) in place.play(scene)? {
                report.add(judge(case, &said).map_err(|why| format!("{case}, {who}: {why}")));
            }
        }
        for case in ALONE {
            let said = place.alone(case)?;
            report.add(judge(case, &said).map_err(|why| format!("{case}, {who}: {why}")));
        }
    }
    report.note = format!("{} runs of Debian's uDAPL programs", report.passed);
    Ok(report)
}

/// Whether a run succeeded, by what its programs printed.
fn judge(case: &Case, said: &Said) -> Result<(), String> {
    let all = format!("{}\n-- server:\n{}", said.client, said.server);
    if !said.in_time {
        return Err(format!("did not exit within {} s\n{all}", LIMIT.as_secs()));
    }
    for wanted in case.says {
        if !wanted.split('|').any(|it| said.client.contains(it)) {
            return Err(format!("did not print \"{wanted}\"\n{all}"));
        }
    }
    for wanted in case.server_says {
        if !said.server.contains(wanted) {
            return Err(format!("the server did not print \"{wanted}\"\n{all}"));
        }
    }
    let passes = said.client.matches(cases::PASS).count();
    if passes != case.passes {
        let wanted = case.passes;
        return Err(format!(
            "{passes} of its cases succeeded instead of {wanted}\n{all}"
        ));
    }
    let bad = |line: &&str| {
        cases::COMPLAINTS.iter().any(|word| line.contains(word))
            && !case.may_say.iter().any(|allowed| line.contains(allowed))
    };
    match said.client.lines().chain(said.server.lines()).find(bad) {
        Some(line) => Err(format!("printed an error: \"{}\"\n{all}", line.trim())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(client: &str, server: &str) -> Said {
        Said {
            client: client.to_owned(),
            server: server.to_owned(),
            in_time: true,
        }
    }

    #[test]
    fn a_run_without_its_success_lines_or_with_an_error_fails() {
        let case = Case {
            says: &["PASSED"],
            server_says: &["done"],
            may_say: &["known failed"],
            ..Case::CLIENT
        };
        assert_eq!(judge(&case, &said("PASSED", "done")), Ok(()));
        assert_eq!(judge(&case, &said("PASSED\nknown failed", "done")), Ok(()));
        for (client, server) in [
            ("", "done"),
            ("PASSED", ""),
            ("PASSED\nit failed", "done"),
            ("PASSED", "done\nError dat_ep_create"),
        ] {
            assert!(
                judge(&case, &said(client, server)).is_err(),
                "{client:?} {server:?}"
            );
        }
        let late = Said {
            in_time: false,
            ..said("PASSED", "done")
        };
        assert!(judge(&case, &late).is_err());
    }
}
