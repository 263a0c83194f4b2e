//! Checks that each function in a front end's table names the call that reaches it: `fi_tsend` arrives at a function
//! called `send`, and a search for `fi_tsend` must find it.

use super::Finding;
use crate::source::{Tree, code_without_tests};

/// The directories with functions in tables, and the prefix of the API's calls.
const TABLES: &[(&str, &str)] = &[
    ("abi/fabric/src/", "`fi_"),
    ("abi/verbs/src/tables/", "`ibv_"),
];

/// `nosys` stands for every call that the provider does not support.
const NO_CALL: &[&str] = &["nosys"];

/// The doc comment of every C function in a table names its call.
pub(super) fn named(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let Some((_, call)) = TABLES.iter().find(|(at, _)| file.path.starts_with(at)) else {
            continue;
        };
        let text: Vec<&str> = file.text.lines().map(str::trim_start).collect();
        for (index, line) in code_without_tests(&file.text).lines().enumerate() {
            let Some(name) = c_function(line) else {
                continue;
            };
            let is_call = name.starts_with(&call[1..]);
            if !is_call && !NO_CALL.contains(&name) && !is_said(&text[..index], call) {
                let message = format!("name the call that `{name}` implements: /// {call}...`.");
                findings.push(Finding::at("calls", &file.path, index + 1, message));
            }
        }
    }
    findings
}

/// The name of the C function that this line defines. Macros name theirs elsewhere.
fn c_function(line: &str) -> Option<&str> {
    // The `"C"` between the two words is blanked out, as all literals are.
    let (_, rest) = line.split_once("extern     fn ")?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (end > 0).then(|| &rest[..end])
}

/// Whether the doc comment at the end of `above` names a call.
fn is_said(above: &[&str], call: &str) -> bool {
    let mut comment = above
        .iter()
        .rev()
        .take_while(|line| line.starts_with("///") || line.starts_with("#["));
    comment.any(|line| line.starts_with("///") && line.contains(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        named(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn a_function_that_names_no_call_is_found() {
        let send = "unsafe extern \"C\" fn send(ep: *mut FidEp) -> isize { 0 }";
        let path = "abi/fabric/src/ep/tables/tagged.rs";
        assert_eq!(found(path, send), 1);
        assert_eq!(found(path, &format!("/// Sends.\n{send}")), 1);
        assert_eq!(found(path, &format!("/// `fi_tsend`.\n{send}")), 0);
        assert_eq!(
            found(path, &format!("/// `fi_tsend`.\n#[inline]\n{send}")),
            0
        );
        assert_eq!(
            found(
                "abi/verbs/src/tables/qp.rs",
                &format!("/// `fi_tsend`.\n{send}")
            ),
            1
        );
        assert_eq!(found("crates/core/src/a.rs", send), 0);
    }

    #[test]
    fn exported_functions_and_macros_need_not_name_their_call() {
        let path = "abi/fabric/src/lib.rs";
        assert_eq!(found(path, "pub extern \"C\" fn fi_prov_ini() {}"), 0);
        assert_eq!(
            found(path, "unsafe extern \"C\" fn $name(ep: *mut FidEp) {}"),
            0
        );
    }
}
