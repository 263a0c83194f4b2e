//! The connection managers of processes: identifiers, listeners, and which side is waiting for which.

use crate::style;
use comfy_table::ColumnConstraint;
use rkey_device::cm::{CmView, IdView};

/// The maximum number of rows; JSON has all rows of the inspection.
const SHOWN: usize = 50;

/// The identifiers of all connection managers, as text; empty if there are none.
pub(super) fn text(managers: &[CmView], colour: bool) -> String {
    if managers.is_empty() {
        return String::new();
    }
    let header = ["pid", "id", "type", "state", "local", "peer", "waits for"];
    let mut table = style::table(colour, header);
    // Only the last two columns have spaces to break lines at.
    for column in 0..header.len() - 2 {
        if let Some(column) = table.column_mut(column) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    let all = managers.iter().flat_map(|manager| {
        let of = manager.ids.iter();
        of.map(move |id| (manager, id))
    });
    for (manager, id) in all.take(SHOWN) {
        table.add_row(row(manager, id));
    }
    let count: usize = managers.iter().map(|it| it.id_count).sum();
    let mut text = format!(
        "Connection manager: {}\n",
        style::count(count, "identifier")
    );
    if count > 0 {
        text.push_str(&format!("{table}\n"));
    }
    if count > SHOWN {
        text.push_str(&format!("... and {} more\n", count - SHOWN));
    }
    for manager in managers.iter().filter(|it| it.refused > 0) {
        let (pid, refused) = (
            manager.pid,
            style::count(manager.refused as usize, "refused connection"),
        );
        text.push_str(&format!(
            "process {pid}: {refused} (`rkey explain {pid}`)\n"
        ));
    }
    text
}

fn row(manager: &CmView, id: &IdView) -> [String; 7] {
    let peer = id.peer.clone().unwrap_or_default();
    [
        manager.pid.to_string(),
        match manager.api.as_str() {
            "librdmacm" => id.name.clone(),
            api => format!("{api} {}", id.name),
        },
        match id.space.as_str() {
            "TCP" => id.qp_type.clone(),
            space => format!("{} ({space})", id.qp_type),
        },
        id.state.clone(),
        id.local.clone().unwrap_or_default(),
        match id.peer_pid {
            Some(pid) => format!("{peer} (pid {pid})"),
            None => peer,
        },
        id.waits_for.clone().unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_of_all_processes_are_in_one_table() {
        assert_eq!(text(&[], false), "");
        let id = |n: u32| IdView {
            name: format!("{n:#x}"),
            qp_type: "RC".to_owned(),
            space: "IB".to_owned(),
            state: "connecting".to_owned(),
            peer: Some("127.0.0.1:7471".to_owned()),
            peer_pid: Some(n),
            waits_for: Some("process 7".to_owned()),
            ..IdView::default()
        };
        let manager = |pid| CmView {
            pid,
            api: "Rust".to_owned(),
            ids: (0..40).map(id).collect(),
            id_count: 40,
            refused: 2,
            ..CmView::default()
        };
        let text = text(&[manager(1001), manager(1002)], false);
        for words in [
            "80 identifiers",
            "Rust 0x27",
            "RC (IB)",
            "(pid 39)",
            "... and 30 more",
            "process 1002: 2 refused connections",
        ] {
            assert!(text.contains(words), "{words} is missing in {text}");
        }
    }
}
