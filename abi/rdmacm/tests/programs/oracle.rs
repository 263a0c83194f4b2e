//! Compares this library with a recording: the same calls on the stock library with the kernel's rxe. Every difference is listed
//! with its reason.

use crate::support::{Port, Stage, outside};

/// The output of `probe.c` with librdmacm of rdma-core 44 on rxe of Linux 6.1.
const RECORDED: &str = include_str!("../oracle/recorded.txt");
/// The known differences.
const DIFFERENCES: &str = include_str!("../oracle/differences.txt");
/// A group of differences whose reason begins with this text applies only to hosts that have no other addresses.
const LOOPBACK_ONLY: &str = "On a host with loopback addresses only";

/// The addresses and ports of a run, and their placeholders.
struct Names<'a> {
    addresses: [(&'a str, &'a str); 2],
    ports: [(u16, &'a str); 3],
}

impl Names<'_> {
    fn port(&self, number: &str) -> String {
        match number.parse() {
            // No port, or the fixed port that the probe connects to.
            Ok(0 | 1) | Err(_) => number.to_owned(),
            Ok(number) => {
                let known = self.ports.iter().find(|(port, _)| *port == number);
                known.map_or("PORT", |(_, name)| name).to_owned()
            }
        }
    }

    /// A word of a line, with placeholders for what differs between runs.
    fn word(&self, word: &str) -> String {
        let is_time = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        if word.strip_prefix('+').is_some_and(is_time) {
            return "+T".to_owned();
        }
        let Some((field, value)) = word.split_once('=') else {
            return word.to_owned();
        };
        match (field, value.split_once(':')) {
            ("src" | "dst", Some((address, port))) => {
                let known = self.addresses.iter().find(|(own, _)| *own == address);
                let name = known.map_or(address, |(_, name)| name);
                format!("{field}={name}:{}", self.port(port))
            }
            ("port" | "sport", None) => format!("{field}={}", self.port(value)),
            _ => word.to_owned(),
        }
    }

    fn line(&self, line: &str) -> String {
        // The text of a call. Preprocessors differ in the spaces that they keep.
        if let Some((call, result)) = line.split_once(" = ")
            && !line.starts_with(' ')
        {
            let call: String = call.split_whitespace().collect();
            return format!("{call} = {}", result.trim());
        }
        if let Some((before, _)) = line.split_once("auto port ") {
            return format!("{before}auto port PORT");
        }
        let words: Vec<String> = line.split(' ').map(|word| self.word(word)).collect();
        words.join(" ").trim_end().to_owned()
    }

    fn lines(&self, text: &str) -> Vec<String> {
        text.lines().map(|line| self.line(line)).collect()
    }
}

/// The recorded lines, with the differences that apply.
fn expected(recorded: &[String], only_loopback: bool) -> Vec<String> {
    let (mut result, mut rest) = (Vec::new(), recorded);
    for group in DIFFERENCES.split("\n\n").skip(1) {
        let reason = group.lines().next().unwrap_or_default();
        assert!(
            reason.starts_with("# "),
            "this group has no reason: {group}"
        );
        if reason.contains(LOOPBACK_ONLY) && !only_loopback {
            continue;
        }
        let of = |signs: &str| -> Vec<String> {
            let lines = group
                .lines()
                .filter(|line| line.starts_with(|c| signs.contains(c)));
            lines.map(|line| line[1..].to_owned()).collect()
        };
        let (theirs, ours) = (of("-="), of("+="));
        let at = rest.windows(theirs.len()).position(|lines| lines == theirs);
        let at = at.unwrap_or_else(|| panic!("these lines are not in the recording: {theirs:#?}"));
        result.extend_from_slice(&rest[..at]);
        result.extend(ours);
        rest = &rest[at + theirs.len()..];
    }
    result.extend_from_slice(rest);
    result
}

#[test]
fn results_differ_from_the_stock_library_only_as_listed() {
    let recording = Names {
        addresses: [("10.77.0.2", "SELF"), ("192.0.2.99", "AWAY")],
        ports: [(7000, "A"), (7100, "B"), (7200, "C")],
    };
    let (address, held) = (outside(), [(); 4].map(|()| Port::new()));
    // If there is only the loopback interface: all of 127.0.0.0/8 belongs to this host.
    let own = address.map_or("127.0.0.2".to_owned(), |address| address.to_string());
    let numbers = held.each_ref().map(|port| port.number);
    let run = Names {
        addresses: [(&own, "SELF"), ("192.0.2.99", "AWAY")],
        ports: [(numbers[0], "A"), (numbers[1], "B"), (numbers[2], "C")],
    };
    let stage = Stage::new("probe");
    stage.write("common.h", include_str!("common.h"));
    stage.write("probe_endpoints.h", include_str!("probe_endpoints.h"));
    let program = stage.compile("probe", include_str!("probe.c"), &["-lpthread"]);
    let mut command = stage.command(&program);
    command.env("RKEY_LOG", "off").args([&own, "::1"]);
    command.args(numbers.map(|number| number.to_string()));
    let said = stage.start(command, "probe").succeed();
    let (found, expected) = (
        run.lines(&said),
        expected(&recording.lines(RECORDED), address.is_none()),
    );
    for (index, line) in expected.iter().enumerate() {
        let found = found.get(index).map_or("(nothing)", |line| line);
        assert_eq!(found, line, "line {} of\n{said}", index + 1);
    }
    assert_eq!(found.len(), expected.len(), "more lines:\n{said}");
}
