//! The only module that opens files: by path, with gzip and zstd undone by their magic bytes rather than their names.

use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const BUFFER_BYTES: usize = 1 << 16;

/// Opens `path` for reading, decompressed.
///
/// # Errors
///
/// [`Error::File`] when the file cannot be opened or read.
pub fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    let wrap = |source| Error::file(path, source);
    let mut raw = BufReader::with_capacity(BUFFER_BYTES, File::open(path).map_err(wrap)?);
    let start = raw.fill_buf().map_err(wrap)?;
    if start.starts_with(GZIP_MAGIC) {
        // Multi-member: files joined with `cat` are valid gzip.
        let plain = flate2::bufread::MultiGzDecoder::new(raw);
        Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, plain)))
    } else if start.starts_with(ZSTD_MAGIC) {
        let plain = zstd::stream::read::Decoder::with_buffer(raw).map_err(wrap)?;
        Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, plain)))
    } else {
        Ok(Box::new(raw))
    }
}

/// Whether `path` is a file that exists.
pub fn is_file(path: &Path) -> bool {
    path.is_file()
}

/// Names of the files in a folder, sorted.
///
/// # Errors
///
/// [`Error::File`] when the folder cannot be read.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    let wrap = |source| Error::file(folder, source);
    let entries = std::fs::read_dir(folder).map_err(wrap)?.collect::<std::io::Result<Vec<_>>>().map_err(wrap)?;
    let mut names: Vec<String> = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// The bytes of `path`, decompressed.
///
/// # Errors
///
/// [`Error::File`] when the file cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes).map_err(|source| Error::file(path, source))?;
    Ok(bytes)
}

/// A checksum over the bytes of files, as they lie on disk; 0 without any.
///
/// # Errors
///
/// [`Error::File`] when one cannot be read.
pub fn checksum(paths: &[PathBuf]) -> Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    for path in paths {
        let wrap = |source| Error::file(path, source);
        let mut file = File::open(path).map_err(wrap)?;
        loop {
            let read = file.read(&mut buffer).map_err(wrap)?;
            match buffer.get(..read) {
                Some(bytes) if !bytes.is_empty() => hasher.update(bytes),
                _ => break,
            }
        }
    }
    Ok(hasher.finalize())
}

/// Writes `contents` to `path`, through a temporary name: a reader sees the old file or the whole new one.
///
/// # Errors
///
/// [`Error::File`] when the file cannot be written.
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    let unfinished = unfinished(path);
    std::fs::write(&unfinished, contents)
        .and_then(|()| std::fs::rename(&unfinished, path))
        .map_err(|source| Error::file(path, source))
}

/// A file that grows, piece by piece.
#[derive(Debug)]
pub struct Growing {
    file: File,
    path: PathBuf,
}

impl Growing {
    /// Opens `path`, made if need be, for this process alone where the file system knows locks.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when it cannot be opened, or another process has it open in this way.
    pub fn open(path: &Path) -> Result<Growing> {
        let open = || {
            let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    Err(std::io::Error::new(std::io::ErrorKind::ResourceBusy, "another run is writing it"))
                }
                // A file system without locks: what was free of danger without them still is.
                Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
            }
        };
        let file = open().map_err(|reason| Error::file(path, reason))?;
        Ok(Growing { file, path: path.to_owned() })
    }

    /// Its bytes.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when it cannot be read.
    pub fn read(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes).map_err(|reason| Error::file(&self.path, reason))?;
        Ok(bytes)
    }

    /// Keeps its first bytes only, and goes on behind them.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when it cannot be cut.
    pub fn keep(&mut self, bytes: u64) -> Result<()> {
        let cut = self.file.set_len(bytes).and_then(|()| self.file.seek(SeekFrom::End(0)));
        cut.map(|_| ()).map_err(|reason| Error::file(&self.path, reason))
    }

    /// Appends `bytes` in one go: once this returns they survive the end of this process, however it comes.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when they cannot be written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|reason| Error::file(&self.path, reason))
    }
}

/// Finds out whether [`write()`] could write `path`, before a long run ends in vain. Leaves nothing behind.
///
/// # Errors
///
/// [`Error::File`] when the file cannot be written.
pub fn check_writable(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Err(Error::file(path, std::io::ErrorKind::IsADirectory.into()));
    }
    let unfinished = unfinished(path);
    std::fs::write(&unfinished, "")
        .and_then(|()| std::fs::remove_file(&unfinished))
        .map_err(|source| Error::file(path, source))
}

/// The name under which a file stands until it is whole.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

/// The whole text of `path`, decompressed.
///
/// # Errors
///
/// [`Error::File`] when the file cannot be read or is not UTF-8.
pub fn read_to_string(path: &Path) -> Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text).map_err(|source| Error::file(path, source))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_files_are_read_whatever_their_name() {
        let folder = tempfile::tempdir().unwrap();
        let text = "a,b\n1,2\n";
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        let cases = [
            ("plain", text.as_bytes().to_vec()),
            ("gzip", gzip.finish().unwrap()),
            ("zstd", zstd::encode_all(text.as_bytes(), 1).unwrap()),
        ];
        for (name, bytes) in cases {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read_to_string(&path).unwrap(), text, "{name}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read_to_string(Path::new("no/such/file.csv")).unwrap_err();
        assert!(error.to_string().starts_with("no/such/file.csv: "), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}
