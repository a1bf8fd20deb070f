//! The only module that opens files; every error names the path.

use std::path::Path;

use crate::error::{Error, Result};

/// Whether `path` is a file that exists.
pub fn is_file(path: &Path) -> bool {
    path.is_file()
}

/// The bytes of the file at `path`.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| Error::file(path, source))
}

/// The text of the file at `path`; an error when it is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|source| Error::file(path, source))
}

/// Writes `contents` to `path`, replacing what was there.
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    std::fs::write(path, contents).map_err(|source| Error::file(path, source))
}
