//! From TOML text to checked descriptions: errors carry file, line, key and what would be right.

use serde::de::DeserializeOwned;
use toml_edit::{Document, Item, Table, Value};

use crate::error::{Error, InputError, Result, nearest};

/// Reads a description from TOML. Wrong syntax, types and keys become an [`InputError`] with line, key and, for an
/// unknown key, the nearest known one.
pub fn parse_toml<T: DeserializeOwned>(text: &str, file: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| describe(text, &error).file(file).into())
}

/// The line, from 1, where the dotted key `key` stands in a TOML text, as in `job.max_tokens` or `option[0].name`
/// (elements of arrays count from 0). For a key that is not there: the line of the innermost table around it.
pub fn line_of(text: &str, key: &str) -> Option<u64> {
    let keys = Key::all(text);
    let mut wanted = key;
    loop {
        if let Some(found) = keys.iter().find(|candidate| candidate.path == wanted) {
            return Some(line_at(text, found.start));
        }
        wanted = &wanted[..wanted.rfind(['.', '['])?];
    }
}

/// A text that a description was read from, for errors about its values.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Name of the file, as shown in errors.
    pub file: &'a str,
    /// Its text.
    pub text: &'a str,
}

impl Place<'_> {
    /// Reads the description that stands there.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        parse_toml(self.text, self.file)
    }

    /// An error about the value of the dotted `key`, with its line.
    pub fn error(&self, key: &str, found: impl Into<String>, remedy: impl Into<String>) -> Error {
        let error = InputError::new(found, remedy).key(key).file(self.file);
        match line_of(self.text, key) {
            Some(line) => error.line(line).into(),
            None => error.into(),
        }
    }

    /// Checks that a number is finite and above 0.
    pub fn positive(&self, key: &str, value: f64) -> Result<()> {
        if value.is_finite() && value > 0.0 {
            return Ok(());
        }
        Err(self.error(key, format!("{value} is not a number above 0"), "give a finite number above 0"))
    }

    /// Checks that a number is a share: above 0 and at most 1.
    pub fn share(&self, key: &str, value: f64) -> Result<()> {
        if value > 0.0 && value <= 1.0 {
            return Ok(());
        }
        Err(self.error(key, format!("{value} is not a share"), "give a number above 0 and at most 1"))
    }

    /// Checks that a count is at least 1.
    pub fn at_least_one(&self, key: &str, value: u32) -> Result<()> {
        if value >= 1 {
            return Ok(());
        }
        Err(self.error(key, "0 is too small", "give a whole number of at least 1"))
    }
}

/// A key of a TOML text with its dotted path and the bytes that it and its value take up.
struct Key {
    path: String,
    start: usize,
    end: usize,
}

impl Key {
    /// All keys of a text; none when it is not TOML.
    fn all(text: &str) -> Vec<Key> {
        let mut keys = Vec::new();
        if let Ok(document) = Document::parse(text) {
            Key::walk_table(document.as_table(), "", &mut keys);
        }
        keys
    }

    fn walk_table(table: &Table, prefix: &str, keys: &mut Vec<Key>) {
        for (name, item) in table {
            let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
            let key_span = table.key(name).and_then(toml_edit::Key::span);
            match item {
                Item::Table(inner) => {
                    // A header starts at its bracket, a dotted key at its name.
                    keys.extend(Key::new(&path, inner.span().or(key_span), None));
                    Key::walk_table(inner, &path, keys);
                }
                Item::ArrayOfTables(tables) => {
                    keys.extend(Key::new(&path, key_span, None));
                    for (index, inner) in tables.iter().enumerate() {
                        let element = format!("{path}[{index}]");
                        keys.extend(Key::new(&element, inner.span(), inner.span()));
                        Key::walk_table(inner, &element, keys);
                    }
                }
                Item::Value(value) => {
                    keys.extend(Key::new(&path, key_span, value.span()));
                    Key::walk_value(value, &path, keys);
                }
                Item::None => {}
            }
        }
    }

    fn walk_value(value: &Value, path: &str, keys: &mut Vec<Key>) {
        match value {
            Value::Array(array) => {
                for (index, inner) in array.iter().enumerate() {
                    let element = format!("{path}[{index}]");
                    keys.extend(Key::new(&element, inner.span(), inner.span()));
                    Key::walk_value(inner, &element, keys);
                }
            }
            Value::InlineTable(table) => {
                for (name, inner) in table {
                    let element = format!("{path}.{name}");
                    let span = table.key(name).and_then(toml_edit::Key::span);
                    keys.extend(Key::new(&element, span, inner.span()));
                    Key::walk_value(inner, &element, keys);
                }
            }
            _ => {}
        }
    }

    fn new(path: &str, key: Option<std::ops::Range<usize>>, value: Option<std::ops::Range<usize>>) -> Option<Key> {
        let key = key?;
        let end = value.map_or(key.end, |span| span.end.max(key.end));
        Some(Key { path: path.to_owned(), start: key.start, end })
    }
}

/// The line, from 1, of a byte of a text.
fn line_at(text: &str, offset: usize) -> u64 {
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// The error of the TOML reader, in this project's form.
fn describe(text: &str, error: &toml::de::Error) -> InputError {
    let message = error.message().trim();
    let names = backquoted(message);
    let missing = message.starts_with("missing field");
    // What the outermost table lacks has no place: its span is empty.
    let span = error.span().filter(|span| !(missing && span.is_empty()));
    let key = span.clone().and_then(|span| {
        let inside = |key: &&Key| (key.start..=key.end).contains(&span.start);
        Key::all(text).into_iter().filter(|key| inside(&key)).max_by_key(|key| key.path.len()).map(|key| key.path)
    });
    let mut described = if let (true, Some((unknown, known))) = (message.starts_with("unknown"), names.split_first()) {
        let thing = if message.starts_with("unknown field") { "key" } else { "value" };
        let remedy = match nearest(unknown, known.iter().copied()) {
            Some(near) if known.len() > KNOWN_AT_MOST => format!("did you mean `{near}`?"),
            Some(near) => format!("did you mean `{near}`? Known here: {}", known.join(", ")),
            None if known.is_empty() => "no key is known here".to_owned(),
            None => format!("known here: {}", known.join(", ")),
        };
        InputError::new(format!("unknown {thing} `{unknown}`"), remedy)
    } else if let (true, Some(name)) = (missing, names.first()) {
        InputError::new(format!("the key `{name}` is missing"), format!("add a line `{name} = …`"))
    } else if message.starts_with("invalid type") || message.starts_with("invalid value") {
        let (found, expected) = message.split_once(", expected ").unwrap_or((message, "another type of value"));
        InputError::new(found, format!("give {}", in_words(expected)))
    } else {
        InputError::new(message.replace('\n', "; "), "write it as TOML")
    };
    if let Some(span) = span {
        described = described.line(line_at(text, span.start));
    }
    match key {
        Some(key) => described.key(key),
        None => described,
    }
}

/// The remedy for a value that should be text.
pub(crate) const TEXT_NEEDED: &str = "give text in quotes";

/// Known keys named beside the nearest one at most: a longer list hides it.
const KNOWN_AT_MOST: usize = 16;

/// A type as a user writes it.
fn in_words(expected: &str) -> &str {
    match expected {
        "f32" | "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "i32" | "i64" => "a whole number",
        "a boolean" => "true or false",
        "a string" => "text in quotes",
        "a sequence" => "a list in brackets",
        expected if expected.starts_with("struct") || expected == "a map" => "a table",
        expected => expected,
    }
}

/// The names that stand in backquotes in a message.
fn backquoted(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Card {
        hbm_bytes_per_s: f64,
        link: Option<Link>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Link {
        kind: LinkKind,
        count: u32,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum LinkKind {
        Pcie,
        Nvlink,
    }

    fn shown(text: &str) -> String {
        parse_toml::<Card>(text, "card.toml").unwrap_err().to_string()
    }

    #[test]
    fn unknown_keys_name_the_nearest_known_one() {
        assert_eq!(
            shown("# a card\nhbm_bytes_per_sec = 1e12\n"),
            "card.toml:2: hbm_bytes_per_sec: unknown key `hbm_bytes_per_sec`; did you mean `hbm_bytes_per_s`? Known \
             here: hbm_bytes_per_s, link"
        );
        assert!(
            shown("hbm_bytes_per_s = 1\n[link]\nkind = \"pcie\"\ncuont = 2")
                .starts_with("card.toml:4: link.cuont: unknown key `cuont`; did you mean `count`?")
        );
    }

    #[test]
    fn wrong_values_carry_line_and_key() {
        assert!(
            shown("hbm_bytes_per_s = 1\n[link]\nkind = \"pci\"\ncount = 2")
                .starts_with("card.toml:3: link.kind: unknown value `pci`; did you mean `pcie`?")
        );
        let text = shown("hbm_bytes_per_s = \"fast\"\n");
        assert!(
            text.starts_with("card.toml:1: hbm_bytes_per_s: invalid type: string \"fast\"; give a number"),
            "{text}"
        );
        let text = shown("hbm_bytes_per_s = 1\n[link]\nkind = \"pcie\"\ncount = -2");
        assert!(
            text.starts_with("card.toml:4: link.count: invalid value: integer `-2`; give a whole number of 0 or more"),
            "{text}"
        );
        let text = shown("hbm_bytes_per_s = 1\n[link]\nkind = \"pcie\"");
        assert!(text.starts_with("card.toml:2: link: the key `count` is missing; add a line `count = …`"), "{text}");
        let text = shown("[link]\nkind = \"pcie\"\ncount = 2\n");
        assert!(text.starts_with("card.toml: the key `hbm_bytes_per_s` is missing; add a line"), "{text}");
        let text = shown("hbm_bytes_per_s = = 1\n");
        assert!(text.starts_with("card.toml:1: "), "{text}");
    }

    #[test]
    fn lines_of_keys() {
        let text = "a = 1\n[job]\nmax_tokens = 4\n\n[[option]]\nname = 'x'\n[[option]]\nname = 'y'\nset = { b = 1 }\n";
        assert_eq!(line_of(text, "a"), Some(1));
        assert_eq!(line_of(text, "job.max_tokens"), Some(3));
        assert_eq!(line_of(text, "job.absent"), Some(2));
        assert_eq!(line_of(text, "option[1].name"), Some(8));
        assert_eq!(line_of(text, "option[1].set.b"), Some(9));
        assert_eq!(line_of(text, "nowhere"), None);
    }
}
