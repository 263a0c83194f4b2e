//! A place where libfabric finds the provider.

use rkey_kit::delivery::FABRIC;
use std::path::PathBuf;

/// A directory with a link to the library that cargo built for the tests, under the name that libfabric looks for.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let test = std::env::current_exe().expect("a test has a path");
        let beside = test.parent().expect("in a directory");
        let library = FABRIC
            .find(beside)
            .expect("cargo builds the library for its tests");
        let folder = rkey_harness::temporary_folder("rkey-provider");
        FABRIC
            .put_into(&folder, &library)
            .expect("links can be made");
        Self(folder)
    }

    /// Replaces the link with a copy of the library, for users who cannot access cargo's directory.
    #[allow(
        dead_code,
        reason = "only the benchmark runs as another user in every directory"
    )]
    pub(crate) fn copy_libraries(&self) {
        rkey_harness::replace_link_with_copy(&self.0.join(FABRIC.file));
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
