//! Debian's Open MPI and MPICH, both over UCX: a program of four ranks.

use crate::support::{DEVICE, Stage};
use crate::ucx::only;

fn four_ranks(name: &str, compiler: &str, launcher: &[&str]) {
    let stage = Stage::new(name);
    let (source, program) = (stage.file("ring.c"), stage.file("ring"));
    std::fs::write(&source, include_str!("ring.c")).expect("a file can be written");
    let mut compile = std::process::Command::new(compiler);
    compile.arg("-O1").arg("-o").arg(&program).arg(&source);
    stage.start(compile, "compiler").succeed();
    let mut run = stage.command(launcher[0]);
    run.args(&launcher[1..]).arg(&program);
    // UCX would prefer shared memory; messages must use the device.
    only("rc,self")(&mut run);
    let text = stage.start(run, "launcher").succeed();
    assert!(text.contains("4 ranks agree"), "{text}");
    assert!(
        text.contains(&format!("rc_verbs/{DEVICE}:1")),
        "not over {DEVICE}: {text}"
    );
}

#[test]
fn open_mpi_runs_four_ranks() {
    let options = [
        "--allow-run-as-root",
        "--oversubscribe",
        "--mca",
        "pml",
        "ucx",
        "--mca",
        "osc",
        "ucx",
    ];
    let launcher = [&["mpirun.openmpi", "-np", "4"], &options[..]].concat();
    four_ranks("openmpi", "mpicc.openmpi", &launcher);
}

#[test]
fn mpich_runs_four_ranks() {
    four_ranks("mpich", "mpicc.mpich", &["mpirun.mpich", "-np", "4"]);
}
