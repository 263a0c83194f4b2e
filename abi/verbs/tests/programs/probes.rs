//! Programs in C, compiled here against Debian's headers, and Python.

use crate::support::{DEVICE, Stage};
use std::process::Command;

/// Compiles a program.
fn compile(stage: &Stage, name: &str, source: &str, libraries: &[&str]) -> std::path::PathBuf {
    let (file, program) = (stage.file(&format!("{name}.c")), stage.file(name));
    std::fs::write(&file, source).expect("a file can be written");
    let mut compiler = Command::new("gcc");
    compiler
        .args(["-O1", "-Wall"])
        .arg("-o")
        .arg(&program)
        .arg(&file)
        .args(libraries);
    stage.start(compiler, "gcc").succeed();
    program
}

#[test]
fn a_program_can_load_symbols_by_version() {
    let stage = Stage::new("nccl");
    let program = compile(&stage, "nccl", include_str!("nccl.c"), &["-ldl"]);
    for library in ["libibverbs.so", "libibverbs.so.1"] {
        let mut command = stage.command(&program);
        command.arg(library);
        let text = stage.start(command, "program").succeed();
        assert!(
            text.contains(DEVICE) && text.ends_with("done\n"),
            "{library}: {text}"
        );
    }
}

/// Loads the public symbols of rdma-core 65, and calls those added since Debian's version.
#[test]
fn a_program_for_a_newer_rdma_core_runs() {
    let stage = Stage::new("versions");
    let source = include_str!("versions.c");
    let program = compile(&stage, "versions", source, &["-libverbs", "-ldl"]);
    let debian = include_str!("../../../all/tests/debian-exports.txt").lines();
    let symbols = debian.chain(include_str!("../../../all/tests/later-exports.txt").lines());
    let mut command = stage.command(program);
    command.args(symbols);
    let text = stage.start(command, "program").succeed();
    assert!(text.ends_with("done\n"), "{text}");
}

/// The example program of the README.
#[test]
fn the_readme_example_writes_once_and_is_then_refused() {
    let stage = Stage::new("write");
    let source = include_str!("../../examples/write.c");
    let program = compile(&stage, "write", source, &["-libverbs"]);
    let text = stage.start(stage.command(program), "program").succeed();
    for line in [
        "the first write: success, the second: remote access error\n",
        "the owner has: written by the peer\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

/// Proves: VB-008
#[test]
fn signals_interrupt_waits_as_they_interrupt_a_read() {
    let stage = Stage::new("signals");
    let program = compile(&stage, "signals", include_str!("signals.c"), &["-libverbs"]);
    let text = stage.start(stage.command(program), "program").succeed();
    assert!(text.ends_with("done\n"), "{text}");
}

/// Proves: VB-008
#[test]
fn nonsense_arguments_are_refused() {
    let stage = Stage::new("nonsense");
    let program = compile(
        &stage,
        "nonsense",
        include_str!("nonsense.c"),
        &["-libverbs"],
    );
    let text = stage.start(stage.command(program), "program").succeed();
    assert!(text.ends_with("done\n"), "{text}");
}

#[test]
fn only_the_files_of_the_device_are_emulated() {
    let stage = Stage::new("paths");
    let program = compile(
        &stage,
        "paths",
        include_str!("paths.c"),
        &["-libverbs", "-ldl"],
    );
    let text = stage.start(stage.command(program), "program").succeed();
    assert!(text.ends_with("done\n"), "{text}");
}

#[test]
fn options_that_this_device_lacks_are_refused_by_name() {
    let stage = Stage::new("options");
    let program = compile(&stage, "options", include_str!("options.c"), &["-libverbs"]);
    let text = stage.start(stage.command(program), "program").succeed();
    assert!(text.ends_with("done\n"), "{text}");
}

#[test]
fn pyverbs_finds_the_device() {
    let stage = Stage::new("python");
    let code = "import pyverbs.device as d; print([x.name.decode() for x in d.get_device_list()])";
    let text = stage.run("/usr/bin/python3", &["-c", code]);
    assert!(text.contains(DEVICE), "{text}");
}
