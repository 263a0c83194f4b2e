//! Hosts at which no program uses RDMA: their kernel says so, and the connection manager does not wait for a minute and a half.

use super::{ADDRESSES, Hosts, LISTENS, PORT, Ready, SERVER, open_folder, place, words};
use crate::rsockets::preload_after;
use crate::support::{Running, Stage};
use rkey_harness::key::KeyFile;
use std::time::Duration;

/// Far more than the connection manager needs, and far less than the 98 s that it waits for a host that says nothing.
const SOON: u64 = 40_000;

/// Two hosts, and the program that these tests run on them.
struct Place {
    stage: Stage,
    hosts: Hosts,
    program: String,
}

impl Place {
    fn new(test: &str) -> Option<Self> {
        let (stage, hosts) = place(test, 1500)?;
        stage.write("common.h", include_str!("../common.h"));
        let program = stage.compile("absent", include_str!("../absent.c"), &[]);
        let program = program.display().to_string();
        Some(Self {
            stage,
            hosts,
            program,
        })
    }

    /// A client, with a setting. Its first event is not its end if it waits for a file.
    fn client(&self, does: &str, server: &str, setting: &str, file: &str) -> Running {
        let line = format!(
            "env RKEY_LOG=info {setting} {} {does} {server} {PORT} {file}",
            self.program
        );
        self.hosts.start(&self.stage, 1, &words(&line), "auto")
    }

    /// The file for which clients wait.
    fn file(&self) -> String {
        let file = open_folder(&self.stage).join("go");
        file.display().to_string()
    }

    /// Lets a client end that waits for the file, and returns its output.
    fn end(&self, client: Running) -> String {
        std::fs::write(self.file(), "").expect("a file can be written");
        let said = client.succeed();
        std::fs::remove_file(self.file()).expect("the file is ours");
        said
    }

    fn server(&self, server: &str) -> Running {
        let line = format!("{} serves {server} {PORT}", self.program);
        self.hosts.start(&self.stage, 0, &words(&line), "auto")
    }
}

/// The last event that a program has printed, its status, and its time in milliseconds.
fn last_event(said: &str) -> (&str, i32, u64) {
    let mut lines = said.lines().rev();
    let line = lines.find(|line| line.starts_with("RDMA_CM_EVENT"));
    let words: Vec<&str> = line.unwrap_or_default().split(' ').collect();
    let [event, status, time] = words[..] else {
        panic!("no event: {said}")
    };
    let (status, time) = (status.parse(), time.parse());
    (event, status.expect("a status"), time.expect("a time"))
}

/// With and without a key. The program gets the same event as for a port at which nothing listens.
#[test]
fn a_request_to_a_host_without_rdma_is_refused_soon() {
    let Some(place) = Place::new("absent-hosts") else {
        return;
    };
    let key = KeyFile::new(&place.hosts.0, 7);
    let key = format!("RKEY_WIRE_KEY={}", key.path().display());
    for (does, server, setting, expected) in [
        ("connects", SERVER, "A=B", ("RDMA_CM_EVENT_REJECTED", 8)),
        (
            "connects",
            ADDRESSES[0][1],
            &key,
            ("RDMA_CM_EVENT_REJECTED", 8),
        ),
        ("resolves", SERVER, "A=B", ("RDMA_CM_EVENT_UNREACHABLE", 1)),
    ] {
        // The log is written by another thread.
        let mut client = place.client(does, server, setting, &place.file());
        client.wait_for("no RDMA device listens");
        client.wait_for("RDMA_CM_EVENT");
        let said = place.end(client);
        let (event, status, time) = last_event(&said);
        assert_eq!((event, status), expected, "{does} {server}: {said}");
        assert!((1500..SOON).contains(&time), "{does} {server}: {said}");
        assert!(said.contains("RKEY_WIRE=auto"), "{said}");
    }
}

/// The client's first request is lost, and the next one reaches the server. On a machine that is too busy to start the server within a
/// second, the client may be refused.
#[test]
fn a_server_that_starts_a_second_after_its_client_is_reached() {
    let Some(place) = Place::new("late-hosts") else {
        return;
    };
    let mut said = String::new();
    for _ in 0..5 {
        let mut client = place.client("connects", SERVER, "A=B", "");
        client.wait_for("asks");
        std::thread::sleep(Duration::from_secs(1));
        let mut server = place.server(SERVER);
        said = client.succeed();
        server.kill();
        if last_event(&said).0 == "RDMA_CM_EVENT_ESTABLISHED" {
            return;
        }
    }
    panic!("{said}");
}

/// A server that is killed sends nothing, and no other program of its host answers the DREQ.
#[test]
fn a_disconnect_from_a_server_that_was_killed_ends_soon() {
    let Some(place) = Place::new("killed-hosts") else {
        return;
    };
    for server in ADDRESSES[0] {
        let mut running = place.hosts.wait_until(LISTENS, place.server(server));
        let mut client = place.client("connects", server, "A=B", &place.file());
        client.wait_for("RDMA_CM_EVENT_ESTABLISHED");
        running.kill();
        // Nothing is outstanding, so the client does not notice it.
        std::thread::sleep(Duration::from_secs(2));
        assert!(!client.text().contains("DISCONNECTED"));
        let said = place.end(client);
        let (event, status, time) = last_event(&said);
        assert_eq!((event, status), ("RDMA_CM_EVENT_DISCONNECTED", 0), "{said}");
        assert!(time < SOON, "{said}");
    }
}

/// Nothing on the server's host uses RDMA.
#[test]
fn librspreload_falls_back_to_ordinary_sockets_between_two_hosts() {
    let Some((stage, hosts)) = place("ordinary-hosts", 1500) else {
        return;
    };
    let program = stage.compile("http", include_str!("../http.c"), &[]);
    let line = format!("{} {SERVER} {PORT}", program.display());
    let mut command = hosts.command(&stage, 0, &words(&line));
    command.env("RKEY_WIRE", "off");
    let server = hosts.wait_until(Ready::Tcp(PORT), stage.start(command, "server"));
    let moved = format!("env LD_PRELOAD={}", preload_after(&stage));
    let answer = open_folder(&stage).join("answer");
    for size in [10, 100_000, 900_000] {
        let line = format!(
            "{moved} curl -sS --fail --noproxy * --max-time 60 -o {} http://{SERVER}:{PORT}/{size}",
            answer.display()
        );
        hosts.start(&stage, 1, &words(&line), "auto").succeed();
        let answer = std::fs::read(&answer).expect("curl has written it");
        assert_eq!(answer, vec![b'x'; size]);
    }
    assert_eq!(server.succeed(), "served\n");
}
