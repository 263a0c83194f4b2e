//! Generates `src/sys/layouts.rs` and `src/sys/consts.rs` of the C front ends: bindgen reads the installed headers,
//! [`shape`] gives the result the form that the front ends use, and rustfmt formats it.
//!
//! `cargo xtask bindings` runs it. It needs libclang, and the headers of libibverbs, libfabric, uDAPL and librdmacm in the
//! versions that [`verbs`], [`fabric`], [`udapl`] and [`rdmacm`] name.

mod api;
mod fabric;
mod rdmacm;
mod shape;
mod udapl;
mod verbs;

use anyhow::{Context, Result, bail};
use api::Api;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn main() -> Result<()> {
    let check = std::env::args()
        .skip(1)
        .any(|argument| argument == "--check");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut stale = Vec::new();
    for api in [verbs::api(), fabric::api(), udapl::api(), rdmacm::api()] {
        for (path, text) in generate(&api)? {
            let path = root.join(api.folder).join(path);
            let known = std::fs::read_to_string(&path).unwrap_or_default();
            if known == text {
                continue;
            }
            if check {
                stale.push(path);
            } else {
                std::fs::write(&path, text)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                println!("wrote {}", path.display());
            }
        }
    }
    if !stale.is_empty() {
        bail!("out of date: {stale:?}; run `cargo xtask bindings`");
    }
    Ok(())
}

/// The files of one front end, formatted.
fn generate(api: &Api) -> Result<Vec<(PathBuf, String)>> {
    let version = version(api)?;
    let mut builder = bindgen::builder()
        .header_contents("headers.h", &api.includes())
        .clang_arg(format!("-I{}", compiler_headers()?.display()))
        .ctypes_prefix("::std::ffi")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_debug(false)
        .generate_comments(false)
        .generate_inline_functions(false)
        .formatter(bindgen::Formatter::None)
        .ignore_functions();
    for name in api.types {
        builder = builder.allowlist_type(name);
    }
    for pattern in api.constants {
        builder = builder.allowlist_var(pattern);
    }
    for (name, _) in api.opaque {
        builder = builder.blocklist_type(name);
    }
    for pattern in api.unwanted {
        builder = builder.blocklist_item(pattern);
    }
    let raw = builder
        .parse_callbacks(Box::new(OpaqueTypesAreCopy))
        .generate()
        .context("bindgen cannot read the headers")?
        .to_string();
    let files = shape::shape(api, &raw, &version)?;
    files
        .into_iter()
        .map(|(path, text)| Ok((path, format(&text)?)))
        .collect()
}

/// Types of the front end that replace types of the headers can be copied.
#[derive(Debug)]
struct OpaqueTypesAreCopy;

impl bindgen::callbacks::ParseCallbacks for OpaqueTypesAreCopy {
    fn blocklisted_type_implements_trait(
        &self,
        _: &str,
        derive: bindgen::callbacks::DeriveTrait,
    ) -> Option<bindgen::callbacks::ImplementsTrait> {
        (derive == bindgen::callbacks::DeriveTrait::Copy)
            .then_some(bindgen::callbacks::ImplementsTrait::Yes)
    }
}

/// The version of the installed headers, which must be the one that the front end is generated from.
fn version(api: &Api) -> Result<String> {
    let (program, words) = api.asks.split_first().context("`asks` is empty")?;
    let installed = output(Command::new(program).args(words).arg(api.package))?;
    let installed = installed.trim().to_owned();
    if !installed.starts_with(api.version) {
        bail!(
            "{} {installed} is installed, but the layouts are generated from version {}",
            api.package,
            api.version
        );
    }
    Ok(installed)
}

/// Headers of the compiler, because libclang alone has none.
fn compiler_headers() -> Result<PathBuf> {
    let folder = output(Command::new("gcc").arg("-print-file-name=include"))?;
    Ok(PathBuf::from(folder.trim()))
}

fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed");
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn format(text: &str) -> Result<String> {
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--emit", "stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start rustfmt")?;
    let mut input = rustfmt.stdin.take().context("rustfmt has no standard input")?;
    input.write_all(text.as_bytes())?;
    drop(input);
    let output = rustfmt.wait_with_output()?;
    if !output.status.success() {
        bail!("rustfmt rejects the generated source");
    }
    Ok(String::from_utf8(output.stdout)?)
}
