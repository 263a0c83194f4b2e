//! Checks that links in documents resolve to files of the repository and to headings of their pages.

use super::Finding;
use crate::source::Tree;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Kinds of files that exist but that [`Tree`] does not read.
const UNREAD: &[&str] = &[".json", ".png", ".svg"];

/// Relative links whose target does not exist.
pub(super) fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (event, place) in parser(&file.text).into_offset_iter() {
            let (Event::Start(Tag::Link { dest_url, .. })
            | Event::Start(Tag::Image { dest_url, .. })) = event
            else {
                continue;
            };
            if !resolves(tree, &file.path, &dest_url) {
                let line = file.text[..place.start].matches('\n').count() + 1;
                let message = format!("link to `{dest_url}`, which does not exist");
                findings.push(Finding::at("links", &file.path, line, message));
            }
        }
    }
    findings
}

fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
}

fn resolves(tree: &Tree, from: &str, target: &str) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let mut parts: Vec<&str> = from.split('/').collect();
    if !path.is_empty() {
        parts.pop();
    }
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return false,
            ".." => {}
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    match tree.get(&path) {
        Some(page) if path.ends_with(".md") && !heading.is_empty() => {
            anchors(&page.text).any(|anchor| anchor == heading)
        }
        Some(_) => true,
        None => {
            let folder = format!("{path}/");
            let is_folder = tree.files.iter().any(|file| file.path.starts_with(&folder));
            path.is_empty() || is_folder || UNREAD.iter().any(|end| path.ends_with(end))
        }
    }
}

/// The headings of a page, in the form that links use: in lower case, with `-` for each space and without punctuation.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let mut heading = None;
    parser(text).filter_map(move |event| match event {
        Event::Start(Tag::Heading { .. }) => {
            heading = Some(String::new());
            None
        }
        Event::End(TagEnd::Heading(_)) => heading.take(),
        Event::Text(words) | Event::Code(words) => {
            let kept = words
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            let slug = kept.flat_map(char::to_lowercase);
            if let Some(heading) = &mut heading {
                heading.extend(slug.map(|c| if c == ' ' { '-' } else { c }));
            }
            None
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_link_is_found() {
        let found = |target: &str| {
            let text = format!("# Here\n\nsee [it]({target}) and [web](https://example.org/x)");
            let other = "# The `page`: a part\n";
            let files = [
                ("docs/a.md", &*text),
                ("README.md", "r"),
                ("docs/b.md", other),
            ];
            links(&Tree::of(&files)).len()
        };
        for bad in ["c.md", "../../README.md", "#there", "b.md#part", "../doc"] {
            assert_eq!(found(bad), 1, "{bad}");
        }
        let good = [
            "b.md",
            "b.md#the-page-a-part",
            "../README.md",
            "../docs",
            "#here",
            "a.svg",
        ];
        for good in good {
            assert_eq!(found(good), 0, "{good}");
        }
    }

    #[test]
    fn a_link_in_code_is_not_a_link() {
        let files = [(
            "a.md",
            "`[a](b.md)`\n\n```\n[a](c.md)\n```\n| a |\n| --- |\n| [a](d.md) |\n",
        )];
        let found = links(&Tree::of(&files));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "a.md:8");
    }
}
