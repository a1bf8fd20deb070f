//! The one error type of the library: what was wrong, where, and what would be right.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Bad input: exit code 2.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A well-formed job that can never be done: an answer with a reason, exit code 1.
    #[error("this job cannot be done: {0}")]
    Impossible(String),
    /// A file could not be read or written: exit code 2.
    #[error("{}: {}", path.display(), in_words(reason))]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        reason: std::io::Error,
    },
}

/// Shorthand for results of the library.
pub type Result<T> = std::result::Result<T, Error>;

/// A bad input, with the place where it stands and what would be right.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputError {
    /// File name, built-in description name or option (`--set`).
    pub file: Option<String>,
    /// Line in that file, from 1.
    pub line: Option<u64>,
    /// Key or column, as in `job.max_tokens`.
    pub key: Option<String>,
    /// What was found there.
    pub found: String,
    /// What would be right.
    pub remedy: String,
}

impl InputError {
    /// An error about `found`, with what would be right.
    pub fn new(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        InputError { found: found.into(), remedy: remedy.into(), ..Self::default() }
    }

    /// Adds the key or column.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds the file, unless one is named already.
    #[must_use]
    pub fn file(mut self, file: impl Into<String>) -> Self {
        self.file.get_or_insert_with(|| file.into());
        self
    }

    /// Adds the line, from 1, unless one is named already.
    #[must_use]
    pub fn line(mut self, line: u64) -> Self {
        self.line.get_or_insert(line);
        self
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}")?;
            if let Some(line) = self.line {
                write!(f, ":{line}")?;
            }
            write!(f, ": ")?;
        } else if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if let Some(key) = &self.key {
            write!(f, "{key}: ")?;
        }
        write!(f, "{}", self.found)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for InputError {}

impl Error {
    /// A file error for `path`.
    pub fn file(path: &Path, reason: std::io::Error) -> Self {
        Error::File { path: path.to_owned(), reason }
    }

    /// The exit code a program should end with: 1 for an answer that it cannot be done, 2 for bad input.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Impossible(_) => 1,
            Error::Input(_) | Error::File { .. } => 2,
        }
    }
}

/// What the operating system said, with what would be right.
fn in_words(reason: &std::io::Error) -> String {
    match reason.kind() {
        ErrorKind::NotFound => "there is no such file or folder; check the path".to_owned(),
        ErrorKind::IsADirectory => "is a folder; name a file".to_owned(),
        ErrorKind::NotADirectory => "a part of the path is a file, not a folder; check the path".to_owned(),
        ErrorKind::PermissionDenied => "permission denied; check who may read and write it".to_owned(),
        ErrorKind::InvalidData => format!("{reason}; give a text file in UTF-8"),
        ErrorKind::UnexpectedEof => format!("{reason}; the file is cut short"),
        _ => format!("{reason}; check that it is a whole file of the right kind"),
    }
}

/// The known name nearest to `name`, if any is near enough to be meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
