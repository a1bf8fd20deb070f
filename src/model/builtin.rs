//! What is compiled into the program: the folders `models/` and `traces/`. A path is tried first, then a name.

use std::borrow::Cow;
use std::path::Path;

use include_dir::{Dir, File, include_dir};

use crate::error::{InputError, Result, nearest};
use crate::files;

static MODELS: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/models");
static TRACES: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/traces");

/// What a description describes; each kind has its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Shapes of an LLM, `models/llm`.
    Llm,
    /// How the weights of a checkpoint are stored, `models/quantisation`.
    Quantisation,
    /// A GPU, `models/hardware`.
    Hardware,
    /// Times of all-reduces between GPUs, `models/collective`.
    Collective,
    /// A serving engine, `models/engine`.
    Engine,
    /// A job on a fleet, `models/scenario`.
    Scenario,
    /// A benchmark table, `traces/measured`.
    Measured,
    /// A trace of requests, `traces/requests`.
    Requests,
    /// Sampled output lengths and laws fitted to them, `traces/lengths`.
    Lengths,
    /// A law of lengths that scenarios name, `models/lengths`.
    Law,
}

impl Kind {
    /// All kinds, in the order in which they are listed.
    pub const ALL: [Kind; 10] = [
        Kind::Scenario,
        Kind::Llm,
        Kind::Quantisation,
        Kind::Hardware,
        Kind::Collective,
        Kind::Engine,
        Kind::Law,
        Kind::Measured,
        Kind::Requests,
        Kind::Lengths,
    ];

    /// The folder, as in the source tree.
    pub fn folder(self) -> &'static str {
        match self {
            Kind::Llm => "models/llm",
            Kind::Quantisation => "models/quantisation",
            Kind::Hardware => "models/hardware",
            Kind::Collective => "models/collective",
            Kind::Engine => "models/engine",
            Kind::Scenario => "models/scenario",
            Kind::Measured => "traces/measured",
            Kind::Requests => "traces/requests",
            Kind::Lengths => "traces/lengths",
            Kind::Law => "models/lengths",
        }
    }

    /// The word for one of this kind, as used in messages and by `makespan list`.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Llm => "llm",
            Kind::Quantisation => "quantisation",
            Kind::Hardware => "hardware",
            Kind::Collective => "collective",
            Kind::Engine => "engine",
            Kind::Scenario => "scenario",
            Kind::Measured => "measured",
            Kind::Requests => "requests",
            Kind::Lengths => "lengths",
            Kind::Law => "law",
        }
    }

    /// The kind of a word, as in `makespan list llm`.
    pub fn from_word(word: &str) -> Result<Kind> {
        let known = || Kind::ALL.into_iter().map(Kind::word);
        Kind::ALL.into_iter().find(|kind| kind.word() == word).ok_or_else(|| {
            let all = known().collect::<Vec<_>>().join(", ");
            let remedy = match nearest(word, known()) {
                Some(near) => format!("did you mean `{near}`? Known: {all}"),
                None => format!("known: {all}"),
            };
            InputError::new(format!("there is no kind `{word}`"), remedy).into()
        })
    }

    fn files(self) -> impl Iterator<Item = &'static File<'static>> {
        let folder = self.folder();
        let (root, name) = folder.split_once('/').unwrap_or((folder, ""));
        let root = if root == "models" { &MODELS } else { &TRACES };
        root.get_dir(name).into_iter().flat_map(Dir::files)
    }
}

/// A description as found: built in, or a file of the user.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its name: that of the file, without `.toml`.
    pub name: String,
    /// Where it stands, as shown in errors: the path, or the folder and file name of a built-in one.
    pub file: String,
    /// What it holds.
    pub contents: Cow<'static, [u8]>,
    /// True when it is compiled in.
    pub built_in: bool,
}

impl Found {
    /// The contents as text.
    pub fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.contents).map_err(|error| {
            let found = format!("byte {} is not UTF-8", error.valid_up_to());
            InputError::new(found, "give a text file in UTF-8").file(self.file.clone()).into()
        })
    }
}

/// The names of everything of a kind that is built in, sorted; tables and traces keep an extension that is not
/// `.toml`.
pub fn names(kind: Kind) -> Vec<String> {
    let mut names: Vec<String> = kind.files().map(|file| name_of(file.path())).collect();
    names.sort();
    names.dedup();
    // Pages beside the descriptions are none, and a table goes by the name of its description.
    let tables: std::collections::BTreeSet<String> = names.iter().map(|name| format!("{name}.csv")).collect();
    names.retain(|name| !name.ends_with(".md") && !tables.contains(name));
    names
}

/// Finds a description by path, or else by the name of a built-in one.
pub fn find(kind: Kind, name_or_path: &str) -> Result<Found> {
    let path = Path::new(name_or_path);
    if files::is_file(path) {
        let contents = Cow::Owned(files::read(path)?);
        return Ok(Found { name: name_of(path), file: name_or_path.to_owned(), contents, built_in: false });
    }
    let wanted = name_or_path.strip_suffix(".toml").unwrap_or(name_or_path);
    // Tables stand beside a `.toml` of the same stem: the exact file name goes first.
    let exact = kind.files().find(|file| file_name(file.path()) == name_or_path);
    if let Some(file) = exact.or_else(|| kind.files().find(|file| name_of(file.path()) == wanted)) {
        return Ok(Found {
            name: name_of(file.path()),
            file: format!("{}/{}", kind.folder(), file_name(file.path())),
            contents: Cow::Borrowed(file.contents()),
            built_in: true,
        });
    }
    let known = names(kind);
    let list = format!("`makespan list {}` shows all", kind.word());
    let remedy = match nearest(wanted, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`? {list}"),
        None => format!("give a path or a built-in name; {list}"),
    };
    Err(InputError::new(format!("there is no {} `{name_or_path}`, as a file or built in", kind.word()), remedy).into())
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn name_of(path: &Path) -> String {
    let name = file_name(path);
    name.strip_suffix(".toml").unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_goes_before_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        files::write(&path, "name = \"mine\"\n").unwrap();
        let found = find(Kind::Llm, path.to_str().unwrap()).unwrap();
        assert_eq!((found.name.as_str(), found.built_in), ("mine", false));
        assert_eq!(found.text().unwrap(), "name = \"mine\"\n");
        assert!(find(Kind::Llm, "qwen3-8b").unwrap().built_in);
        assert_eq!(find(Kind::Llm, "qwen3-8b.toml").unwrap().file, "models/llm/qwen3-8b.toml");
    }

    #[test]
    fn kinds_have_words() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_word(kind.word()).unwrap(), kind);
        }
        let error = Kind::from_word("hardwear").unwrap_err().to_string();
        assert!(error.starts_with("there is no kind `hardwear`; did you mean `hardware`?"), "{error}");
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let error = find(Kind::Llm, "qwen3.6-27").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert_eq!(
            error.to_string(),
            "there is no llm `qwen3.6-27`, as a file or built in; did you mean `qwen3.6-27b`? `makespan list llm` \
             shows all"
        );
    }
}
